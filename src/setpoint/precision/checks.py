"""Checks of `[precision]`: fp16 on a device, and which linear layers float8 takes; no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from setpoint.config import Problem
from setpoint.precision.config import FP16_ON_CPU, ON_A_GPU, SKIP, multiple_of

if TYPE_CHECKING:
    from setpoint.precision.config import Float8


def fp16_problems(path: str, chosen: str, device: str) -> Iterator[Problem]:
    """Look whether fp16 is asked of something else than a GPU.

    Arguments:
        device: `parallel.device`.
    """
    if chosen == "fp16" and device != "cuda":
        yield Problem(
            path, FP16_ON_CPU, valid=("bf16", "fp32"), also=("parallel.device",), hint=ON_A_GPU
        )


def converted(config: Float8, layers: Mapping[str, tuple[int, int]]) -> list[str]:
    """Choose the layers that are computed in float8.

    Arguments:
        layers: (out, in) features of linear layers, by name.

    Returns:
        those that no pattern of `skip` matches and that are not small.
    """
    return [
        name
        for name, size in layers.items()
        if not skips(config, name) and not config.is_small(*size)
    ]


def skips(config: Float8, name: str) -> bool:
    """Whether a pattern of `skip` matches a name."""
    return any(_found(pattern, name) for pattern in config.skip)


def layer_problems(
    config: Float8,
    layers: Mapping[str, tuple[int, int]],
    experts: Mapping[str, tuple[int, int]],
) -> Iterator[Problem]:
    """Find what of the section does not fit the layers of a model.

    Arguments:
        layers: (out, in) features of linear layers, by name.
        experts: (width, dim) of packed experts, by name.

    Returns:
        problems of `skip` or of the section as a whole; paths are relative to it.
    """
    wanted_experts = [name for name in experts if not skips(config, name)]
    if config.experts and not wanted_experts:
        why = "skip matches all of them" if experts else "the model has none, as [model.moe] builds"
        yield Problem("experts", f"finds no packed experts: {why}", valid=("false",))
    if config.skip != SKIP:  # which are for several kinds of model
        names = [*layers, *experts] if config.experts else [*layers]
        for index, pattern in enumerate(config.skip):
            if _compiles(pattern) and not any(_found(pattern, name) for name in names):
                yield Problem(
                    f"skip.{index}",
                    "matches none of the model's linear layers",
                    valid=_some(list(layers)),
                )
    wanted = converted(config, layers)
    if not wanted and not config.experts:
        others = " and that is large enough" if config.skip_small else ""
        yield Problem(
            "skip_small" if config.skip_small else "",
            f"finds no linear layer: the model has none that skip does not match{others}",
            valid=("false",) if config.skip_small else (),
        )
    multiple = multiple_of(config.recipe)
    sizes = {**layers, **experts}
    wanted += wanted_experts if config.experts else []
    wrong = [name for name in wanted if any(size % multiple for size in sizes[name])]
    if wrong:
        rows, columns = sizes[wrong[0]]
        others = f"; {len(wrong) - 1} other layers do not fit either" if len(wrong) > 1 else ""
        yield Problem(
            "",
            f"multiplies matrices whose sides are a multiple of {multiple}, and {wrong[0]} is "
            f"{rows} x {columns}{others}",
            hint="Change the sizes of the model, or put these layers into float8.skip, or set "
            "float8.skip_small to true.",
        )


def _compiles(pattern: str) -> bool:
    """Whether it is a regular expression; the section itself tells of those that are none."""
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _found(pattern: str, name: str) -> bool:
    return _compiles(pattern) and re.search(pattern, name) is not None


def _some(names: list[str]) -> tuple[str, ...]:
    """The last parts of names, as they say most in few words."""
    return tuple(dict.fromkeys(name.rpartition(".")[2] for name in names))[:8]
