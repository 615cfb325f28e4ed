"""Differences between the tensors and states of two checkpoints, one tensor at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from setpoint.shapes.placed import Named, Placeable, in_memory

ELEMENTS = 1 << 22
"""Number of elements that are compared at once, in float64."""


class TensorSide(NamedTuple):
    """A tensor as one checkpoint has it; `dtype` is its short name."""

    shape: tuple[int, ...]
    dtype: str


class TensorDifference(NamedTuple):
    """A tensor that is not the same in both.

    Arguments:
        left, right: None where a checkpoint lacks it.
        norm: 2-norm of the left one.
        difference: 2-norm of left - right; this and the next two are None where a side is missing
            or the shapes differ.
        relative: difference / norm; infinite where the norm is 0.
        largest: the largest absolute difference of an element.
    """

    name: str
    left: TensorSide | None
    right: TensorSide | None
    norm: float | None = None
    difference: float | None = None
    relative: float | None = None
    largest: float | None = None

    @property
    def order(self) -> float:
        """Largest first: what cannot be compared, what is not a number, then by `relative`."""
        if self.relative is None or math.isnan(self.relative):
            return -math.inf
        return -self.relative


def tensor_differences(left: Named, right: Named) -> Iterator[TensorDifference]:
    """Compare tensors by name; what is equal in every bit is left out."""
    for name in sorted({*left, *right}):
        a, b = left.get(name), right.get(name)
        if a is None or b is None:
            yield TensorDifference(
                name, None if a is None else _side(a), None if b is None else _side(b)
            )
        elif a.shape != b.shape:
            yield TensorDifference(name, _side(a), _side(b))
        else:
            figures = _compare(in_memory(a), in_memory(b))
            if figures is not None:
                yield TensorDifference(name, _side(a), _side(b), *figures)


def state_differences(
    left: Mapping[str, Any], right: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Values that differ, by dotted path; None stands for one that is not there."""
    a, b = dict(_leaves(left, "")), dict(_leaves(right, ""))
    paths = dict.fromkeys((*a, *b))
    return {
        path: (a.get(path), b.get(path))
        for path in paths
        if repr(a.get(path)) != repr(b.get(path))  # by which NaN is NaN
    }


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    items = value.items() if isinstance(value, Mapping) else ()
    if isinstance(value, list):
        items = enumerate(value)
    if not items:
        yield path, value
    for key, item in items:
        yield from _leaves(item, f"{path}.{key}" if path else str(key))


def _side(tensor: Tensor | Placeable) -> TensorSide:
    return TensorSide(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def _compare(left: Tensor, right: Tensor) -> tuple[float, float, float, float] | None:
    """Norm, norm of the difference, their ratio, and the largest; None if all bits are equal."""
    a, b = left.reshape(-1), right.reshape(-1)
    if a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8)):
        return None
    squares = differences = largest = 0.0
    for start in range(0, len(a), ELEMENTS):
        part, other = (_exact(values[start : start + ELEMENTS]) for values in (a, b))
        apart = (part - other).abs()
        squares += part.abs().square().sum().item()
        differences += apart.square().sum().item()
        most = apart.max().item()
        largest = most if most > largest or math.isnan(most) else largest
    norm, difference = math.sqrt(squares), math.sqrt(differences)
    relative = difference / norm if norm else math.inf if difference else 0.0
    return norm, difference, relative, largest


def _exact(part: Tensor) -> Tensor:
    return part.to(torch.complex128 if part.is_complex() else torch.float64)
