"""Checks of quantized bases: backends, blocks that do not divide, exclusions; no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from math import gcd, log
from typing import TYPE_CHECKING, Final

from setpoint.adapter.quantize.config import NF4, NVFP4
from setpoint.config import Problem

if TYPE_CHECKING:
    from setpoint.adapter.quantize.config import Quantization

_BLOCKS: Final = {
    "bitsandbytes": (32, 64, 128, 256, 512, 1024, 2048, 4096),
    "torchao": (16,),
}
"""Block sizes that a library has kernels for."""


def backend_in(config: NF4 | NVFP4, device: str) -> str:
    """The library that computes.

    Arguments:
        device: kind of device, such as `cuda`.
    """
    if config.backend != "auto":
        return config.backend
    other = _other(config)
    fits = config.group_size in _BLOCKS[other] and device == "cuda"
    return other if fits and find_spec(other) is not None else "torch"


def _other(config: NF4 | NVFP4) -> str:
    return "bitsandbytes" if isinstance(config, NF4) else "torchao"


def backend_problems(config: Quantization) -> Iterator[Problem]:
    """Find a library that is not installed, or has no such blocks; paths are of the section."""
    if not isinstance(config, NF4 | NVFP4) or config.backend in ("auto", "torch"):
        return
    backend = config.backend
    if find_spec(backend) is None:
        yield Problem(
            "backend",
            f"the package {backend} is not installed (pip install {backend})",
            valid=("auto", "torch"),
        )
    if config.group_size not in _BLOCKS[backend]:
        yield Problem(
            "group_size",
            f"{backend} has no blocks of {config.group_size}",
            valid=tuple(map(str, _BLOCKS[backend])),
            also=("backend",),
        )


def is_quantized(config: Quantization, name: str) -> bool:
    """Whether no pattern of `exclude` is found in the name of a layer."""
    return not any(re.search(pattern, name) for pattern in config.exclude)


def quantize_problems(
    config: Quantization, matrices: Mapping[str, tuple[int, int]]
) -> Iterator[Problem]:
    """Find what of a section does not fit the layers of a model; paths are of the section.

    Arguments:
        matrices: rows and columns of what can be quantized, by the name of the layer.
    """
    yield from backend_problems(config)
    for index, pattern in enumerate(config.exclude):
        if not any(re.search(pattern, name) for name in matrices):
            yield Problem(
                f"exclude.{index}",
                f"matches none of the {len(matrices)} layers that can be quantized",
                valid=tuple(dict.fromkeys(n.rpartition(".")[2] for n in matrices))[:8],
            )
    quantized = {name: shape for name, shape in matrices.items() if is_quantized(config, name)}
    if not quantized:
        yield Problem(
            "exclude" if config.exclude else "", "leaves no linear layer that is quantized"
        )
    size = config.columns or 1
    wrong = {
        name: (rows, columns)
        for name, (rows, columns) in quantized.items()
        if columns % size or rows % config.rows
    }
    if wrong:
        name, (rows, columns) = next(iter(wrong.items()))
        others = f", nor those of {len(wrong) - 1} others" if len(wrong) > 1 else ""
        blocks = f"{size} x {size}" if config.rows > 1 else f"{size}"
        yield Problem(
            "group_size",
            f"blocks of {blocks} do not divide the {rows} x {columns} weights of {name}{others}",
            valid=_sizes(quantized.values(), size, config.rows > 1),
            hint="Or leave layers out by quantize.exclude.",
        )


def _sizes(shapes: Iterable[tuple[int, int]], size: int, square: bool) -> tuple[str, ...]:
    """The nearest block sizes that divide all matrices."""
    sides = (n for rows, columns in shapes for n in ((rows, columns) if square else (columns,)))
    common = gcd(*sides)
    fit = [n for n in range(2, common + 1, 2) if common % n == 0]
    return tuple(map(str, sorted(sorted(fit, key=lambda n: abs(log(n / size)))[:3])))
