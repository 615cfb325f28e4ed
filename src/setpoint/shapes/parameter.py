"""A parameter as far as it decides how it is trained, and patterns on names; torch-free."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from setpoint.config import Problem, nearest

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["matrix", "vector", "tensor", "bias", "norm", "embedding", "output", "router"]
"""The role of a parameter. Without another one it is a `vector`, a `matrix` or, with more than two
dimensions, a `tensor`; Setpoint's packed experts, whose tensors are batches of matrices, are
`matrix`."""


class Parameter(NamedTuple):
    """One parameter of a model.

    Arguments:
        shape: on all ranks together.
        rate: multiplier of its learning rate.
        inputs_first: whether it is a matrix (inputs, outputs), unlike torch.nn.Linear's.
        packed: order of the matrices of transformers' experts in a `tensor`; "": none.
        tensor: None where only the configuration describes it.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind
    rate: float = 1.0
    inputs_first: bool = False
    packed: Literal["", "inputs_first", "outputs_first"] = ""
    tensor: Tensor | None = None


def pattern_problems(
    path: str, pattern: str, valid: Sequence[str] = (), means: str = "all names"
) -> Iterator[Problem]:
    """Check the form of a regular expression on names.

    Arguments:
        valid: what is offered in place of an empty one.
        means: what an empty one would match.
    """
    if not pattern:
        yield Problem(path, f"is empty, and would match {means}", valid=valid)
        return
    try:
        re.compile(pattern)
    except re.error as error:
        yield Problem(path, f"is no regular expression: {error}")


def is_pattern(text: str) -> bool:
    """True if `pattern_problems` finds nothing."""
    return not any(True for _ in pattern_problems("", text))


def matches_nothing(
    path: str, pattern: str, names: Sequence[str], of: str, most: int = 12
) -> Problem:
    """Say that a pattern is found in no name.

    Arguments:
        of: what the names are of.
        most: how many names are shown at most.
    """
    words = dict.fromkeys(part for name in names for part in name.split("."))
    parts = [part for part in re.findall(r"\w+", pattern.replace("\\", " ")) if part not in words]
    close = [word for part in parts for word in nearest(part, [*words], 1)]
    return Problem(
        path,
        f"matches none of the {len(names)} {of}",
        valid=examples(names)[:most],
        hint=f"Did you mean {close[0]}?" if close else "",
    )


def examples(names: Iterable[str]) -> list[str]:
    """One name for all that differ in numbers only, as layers are alike."""
    alike: dict[str, str] = {}
    for name in names:
        alike.setdefault(re.sub(r"\d+", "0", name), name)
    return list(alike.values())
