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
        if not any(_found(p, name) for p in config.skip) and not config.is_small(*size)
    ]


def layer_problems(config: Float8, layers: Mapping[str, tuple[int, int]]) -> Iterator[Problem]:
    """Find what of the section does not fit the linear layers of a model.

    Returns:
        problems of `skip` or of the section as a whole; paths are relative to it.
    """
    if config.skip != SKIP:  # which are for several kinds of model
        for index, pattern in enumerate(config.skip):
            if _compiles(pattern) and not any(_found(pattern, name) for name in layers):
                yield Problem(
                    f"skip.{index}",
                    "matches none of the model's linear layers",
                    valid=_some(list(layers)),
                )
    wanted = converted(config, layers)
    if not wanted:
        others = " and that is large enough" if config.skip_small else ""
        yield Problem(
            "skip_small" if config.skip_small else "",
            f"finds no linear layer: the model has none that skip does not match{others}",
            valid=("false",) if config.skip_small else (),
        )
    multiple = multiple_of(config.recipe)
    wrong = [name for name in wanted if any(size % multiple for size in layers[name])]
    if wrong:
        rows, columns = layers[wrong[0]]
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
