"""Checks of quantized bases: backends, blocks that do not divide, exclusions; no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from math import gcd, log
from typing import TYPE_CHECKING, Final

from setpoint.adapter.quantize.config import FP8, MX_BLOCK, MXFP4, NF4, NVFP4, SCALES_PER_SCALE
from setpoint.config import Caution, Problem
from setpoint.shapes.stored import Form

if TYPE_CHECKING:
    from setpoint.adapter.quantize.config import Quantization

ROUNDED_AGAIN: Final = "base-rounded-again"
UNJOINED: Final = "the layer in adapter.quantize.exclude, or another format"

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
        has_size = "group_size" in type(config).__setpoint__.fields
        yield Problem(
            "group_size" if has_size else "",
            f"blocks of {blocks} do not divide the {rows} x {columns} weights of {name}{others}",
            valid=_sizes(quantized.values(), size, config.rows > 1) if has_size else (),
            hint="Or leave layers out by quantize.exclude.",
        )


def form_problems(config: Quantization, forms: Mapping[str, tuple[Form, int]]) -> Iterator[Problem]:
    """Hold a section against the forms that files hold weights in, which it keeps or rounds again.

    Arguments:
        forms: and columns of matrices, by the names of these.
    """
    odd = {name: form for name, (form, n) in forms.items() if form != form_of(config, n)}
    if not odd:
        return
    name, form = next(iter(odd.items()))
    tag = type(config).__setpoint__.tag
    kept, values = keeping(form)
    rows, columns = form.block
    blocks = f"{columns}" if rows == 1 else f"{rows} x {columns}"
    held = f"the files have {form.numbers} in blocks of {blocks} ({name})"
    if kept == tag:
        for field, value in values.items():
            if getattr(config, field) != value:
                yield Problem(
                    field,
                    f"{held}: their numbers would be rounded once more in place of being kept",
                    valid=(str(value).lower(),),
                )
    elif kept is None and form.numbers == form_of(config, forms[name][1]).numbers:
        yield Problem(
            "",
            f"{held}, which type = {tag} has no blocks for: their numbers would be rounded once "
            f"more in place of being kept",
            hint="Set it to null, where weights are dense; another type rounds them once more.",
        )
    else:
        wanted = "" if kept is None else f"type = {kept} keeps them"
        given = ", ".join(f"{field} = {str(value).lower()}" for field, value in values.items())
        yield Caution(
            ROUNDED_AGAIN,
            "",
            f"{held}, which are made dense and rounded once more to {tag}",
            hint=f"{wanted}{f', {given}' if given else ''}." if wanted else "",
        )


def form_of(config: Quantization, columns: int) -> Form:
    """How a section stores a matrix with so many columns."""
    match config:
        case NF4():
            return Form("nf4", (1, config.group_size), nested=SCALES_PER_SCALE * config.double)
        case FP8():
            return Form("e4m3", (config.group_size, config.group_size))
        case NVFP4():
            return Form("e2m1", (1, config.group_size), "e4m3")
        case MXFP4():
            return Form("e2m1", (1, MX_BLOCK), "exponent")
        case _:
            return Form("int8", (1, config.columns or columns))


def why_not_joined(
    name: str, forms: Sequence[Form], rows: Sequence[int], factors: Sequence[float]
) -> str | None:
    """Say why matrices of files, one above the other, are not kept as one; None if they can be.

    Arguments:
        name: of the one.
        forms, rows: of each.
        factors: that multiply the scales of each; none where there are no such numbers.
    """
    uncut = all(count % forms[0].block[0] == 0 for count in rows)
    if len(set(forms)) == 1 and len(set(factors)) <= 1 and uncut and not forms[0].nested:
        return None
    return (
        f"{name} is made of {len(forms)} matrices of the files, whose scales are not those of one "
        f"matrix, so that their numbers cannot be kept"
    )


def keeping(form: Form) -> tuple[str | None, dict[str, object]]:
    """The type of a section that keeps a form, and its fields; None: there is none."""
    rows, columns = form.block
    match form.numbers, form.scales:
        case "nf4", "float" if form.nested in (0, SCALES_PER_SCALE):
            return "nf4", {"group_size": columns, "double": bool(form.nested)}
        case "int8", "float" if rows == 1 and not form.zeros:
            return "int8", {"group_size": columns}
        case "e4m3", "float" if rows == columns:
            return "fp8", {"group_size": columns}
        case "e2m1", "e4m3":
            return "nvfp4", {"group_size": columns}
        case "e2m1", "exponent" if columns == MX_BLOCK:
            return "mxfp4", {}
        case _:
            return None, {}


def _sizes(shapes: Iterable[tuple[int, int]], size: int, square: bool) -> tuple[str, ...]:
    """The nearest block sizes that divide all matrices."""
    sides = (n for rows, columns in shapes for n in ((rows, columns) if square else (columns,)))
    common = gcd(*sides)
    fit = [n for n in range(2, common + 1, 2) if common % n == 0]
    return tuple(map(str, sorted(sorted(fit, key=lambda n: abs(log(n / size)))[:3])))
