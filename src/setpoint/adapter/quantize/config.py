"""The section `adapter.quantize`: the format of frozen base weights, and checks without torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil, gcd, inf, log
from typing import Final, Literal

from setpoint.config import RUNTIME, Caution, Config, Problem, dead, field, plural, rule
from setpoint.shapes.parameter import Form
from setpoint.shapes.patterns import matches, pattern_problems, unmatched

SCALES_PER_SCALE: Final = 256
"""Group size of scales in double quantization."""
MX_BLOCK: Final = 32
"""Weights per scale of MXFP4."""


class Noise(Config):
    """Adaptive quantization noise (AQN; QeRL, Huang et al., 2025), in training only.

    W' = dequantized W + alpha * half a quantization step * N(0, 1), elementwise, drawn in each step
    from the seed, the step and the module's name.
    """

    alpha: float = field(default=1.0, gt=0, lt=inf)
    """Noise standard deviation, in units of half a quantization step."""

    final_alpha: float | None = field(default=None, gt=0, lt=inf)
    """Final alpha, reached after decay_steps and then kept; null: alpha is constant."""

    decay: Literal["exponential", "linear"] = "exponential"
    """Curve from alpha to final_alpha."""

    decay_steps: int = field(default=1000, ge=1)
    """Number of steps over which alpha decays to final_alpha."""

    @dead("decay", "decay_steps")
    def _decay_is_dead(self) -> str | None:
        return "alpha is constant: final_alpha is null" if self.final_alpha is None else None

    def alpha_at(self, step: int) -> float:
        """Standard deviation in a step.

        Arguments:
            step: number of earlier steps.
        """
        if self.final_alpha is None:
            return self.alpha
        share = min(1.0, step / self.decay_steps)
        if self.decay == "linear":
            return self.alpha + share * (self.final_alpha - self.alpha)
        return self.alpha * (self.final_alpha / self.alpha) ** share


class Quantization(Config):
    """Base of quantization sections: base weights in few bits, with scales per block."""

    exclude: tuple[str, ...] = ()
    """Linear layers and experts that stay unquantized, in addition to the output matrix (lm_head)
    and routers: regular expressions searched in names as in adapter.targets."""

    noise: Noise | None = None
    """Quantization noise in training (AQN); null: none."""

    def form(self, columns: int) -> Form:
        """Quantization format of a matrix with this number of columns."""
        raise TypeError(f"{type(self).__name__} does not define its format")

    @property
    def columns(self) -> int | None:
        """Columns of a block; None: a whole row."""
        return self.form(0).block[1] or None

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.form(0).block[0]

    def stored_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a matrix: codes of 4 or 8 bits, and scales."""
        form = self.form(columns)
        blocks = (rows // form.block[0]) * (columns // form.block[1])
        if form.nested:
            scales = blocks + 4 * ceil(blocks / form.nested) + 4
        else:
            scales = {"float": 4 * blocks, "exponent": blocks, "e4m3": blocks + 4}[form.scales]
        return rows * columns // (2 if form.numbers in ("nf4", "e2m1") else 1) + scales

    @rule
    def _check_exclude(self) -> Iterator[Problem]:
        for index, pattern in enumerate(self.exclude):
            yield from pattern_problems(f"exclude.{index}", pattern)


class NF4(Quantization, type="nf4"):
    """4-bit NormalFloat (QLoRA, Dettmers et al., 2023): quantiles of a normal distribution."""

    group_size: int = field(default=64, ge=2)
    """Weights of a row that share a scale; even, and a divisor of the number of inputs."""

    double: bool = True
    """Double quantization: scales in 8 bits, with an fp32 scale per 256 of them."""

    backend: Literal["auto", "torch", "bitsandbytes"] = field(default="auto", role=RUNTIME)
    """Library that quantizes and dequantizes; auto: bitsandbytes on a GPU where it is installed,
    else torch."""

    def form(self, columns: int) -> Form:
        return Form("nf4", (1, self.group_size), nested=SCALES_PER_SCALE * self.double)

    @rule
    def _check_group_size(self) -> Iterator[Problem]:
        yield from _odd(self.group_size)


class Int8(Quantization, type="int8"):
    """8-bit integers, symmetric: scales are the largest magnitude of a block / 127."""

    group_size: int | None = field(default=None, ge=1)
    """Weights of a row that share a scale, a divisor of the number of inputs; null: the whole
    row."""

    def form(self, columns: int) -> Form:
        return Form("int8", (1, self.group_size or columns))


class FP8(Quantization, type="fp8"):
    """8-bit floats (E4M3) in square blocks: scales are the largest magnitude / 448."""

    group_size: int = field(default=128, ge=1)
    """Block size: a square block of weights shares a scale; divides both dimensions of a matrix."""

    def form(self, columns: int) -> Form:
        return Form("e4m3", (self.group_size, self.group_size))


class NVFP4(Quantization, type="nvfp4"):
    """4-bit floats (E2M1) with an E4M3 scale per block and an fp32 scale of the matrix."""

    group_size: int = field(default=16, ge=2)
    """Weights of a row that share a scale; even, and a divisor of the number of inputs."""

    def form(self, columns: int) -> Form:
        return Form("e2m1", (1, self.group_size), "e4m3")

    @rule
    def _check_group_size(self) -> Iterator[Problem]:
        yield from _odd(self.group_size)


class MXFP4(Quantization, type="mxfp4"):
    """4-bit floats (E2M1) with a power of two per 32 weights of a row (OCP MX), as in GPT-OSS."""

    def form(self, columns: int) -> Form:
        return Form("e2m1", (1, MX_BLOCK), "exponent")


def _odd(size: int) -> Iterator[Problem]:
    """Report blocks that would end in the middle of a byte."""
    if size % 2:
        yield Problem(
            "group_size",
            f"{size} is odd, but two weights are stored in each byte",
            valid=(str(size - 1), str(size + 1)),
        )


ROUNDED_AGAIN: Final = "base-rounded-again"
LEFT_DENSE: Final = "dense-layers-quantized"
UNJOINED: Final = "the layer in adapter.quantize.exclude, or another format"

_KERNELS: Final = (32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Block sizes that bitsandbytes has kernels for."""


def nf4_backend(config: NF4, device: str) -> str:
    """The library that quantizes and dequantizes."""
    if config.backend != "auto":
        return config.backend
    fits = config.group_size in _KERNELS and device == "cuda"
    return "bitsandbytes" if fits and has_bitsandbytes() else "torch"


def has_bitsandbytes() -> bool:
    """True if bitsandbytes is installed."""
    from importlib.util import find_spec  # most commands do not need it

    return find_spec("bitsandbytes") is not None


def backend_problems(config: Quantization) -> Iterator[Problem]:
    """Report a missing bitsandbytes or block size; paths are relative to the section."""
    if not isinstance(config, NF4) or config.backend != "bitsandbytes":
        return
    if not has_bitsandbytes():
        yield Problem(
            "backend",
            "the package bitsandbytes is not installed (pip install bitsandbytes)",
            valid=("auto", "torch"),
        )
    if config.group_size not in _KERNELS:
        yield Problem(
            "group_size",
            f"bitsandbytes has no blocks of {config.group_size}",
            valid=tuple(map(str, _KERNELS)),
            also=("backend",),
        )


def quantize_problems(
    config: Quantization, matrices: Mapping[str, tuple[int, int]]
) -> Iterator[Problem]:
    """Find values that do not suit the layers of a model; paths are relative to the section.

    Arguments:
        matrices: rows and columns of quantizable layers, by name.
    """
    yield from backend_problems(config)
    population = "layers that can be quantized"
    yield from unmatched("exclude", config.exclude, list(matrices), population, 8)
    quantized = {
        name: shape for name, shape in matrices.items() if not matches(config.exclude, name)
    }
    if not quantized:
        yield Problem("exclude" if config.exclude else "", "leaves no linear layer to quantize")
    size = config.columns or 1
    wrong = {
        name: (rows, columns)
        for name, (rows, columns) in quantized.items()
        if columns % size or rows % config.rows
    }
    if wrong:
        name, (rows, columns) = next(iter(wrong.items()))
        more = f", nor those of {plural(len(wrong) - 1, 'other layer')}" if len(wrong) > 1 else ""
        blocks = f"{size} x {size}" if config.rows > 1 else f"{size}"
        has_size = "group_size" in type(config).__setpoint__.fields
        yield Problem(
            "group_size" if has_size else "",
            f"blocks of {blocks} do not divide the {rows} x {columns} weights of {name}{more}",
            valid=_sizes(quantized.values(), size, config.rows > 1) if has_size else (),
            hint="Or exclude layers with quantize.exclude.",
        )


def form_problems(config: Quantization, forms: Mapping[str, tuple[Form, int]]) -> Iterator[Problem]:
    """Compare the section with the quantization of files, which is kept or rounded again.

    Arguments:
        forms: quantization and columns of matrices, by name.
    """
    odd = {name: form for name, (form, n) in forms.items() if form != config.form(n)}
    if not odd:
        return
    name, form = next(iter(odd.items()))
    tag = type(config).__setpoint__.tag
    kept, values = keeping(form)
    rows, columns = form.block
    blocks = f"{columns}" if rows == 1 else f"{rows} x {columns}"
    stored = f"the files have {form.numbers} in blocks of {blocks} ({name})"
    if kept == tag:
        for field, value in values.items():
            if getattr(config, field) != value:
                yield Problem(
                    field,
                    f"{stored}, which would be rounded a second time instead of being kept",
                    valid=(str(value).lower(),),
                )
    elif kept is None and form.numbers == config.form(forms[name][1]).numbers:
        yield Problem(
            "",
            f"{stored}, blocks that type = {tag} does not have, so they would be rounded a second "
            f"time instead of being kept",
            hint="Set it to null for dense weights; another type rounds them a second time.",
        )
    else:
        advice = "" if kept is None else f"type = {kept} keeps them"
        given = ", ".join(f"{field} = {str(value).lower()}" for field, value in values.items())
        yield Caution(
            ROUNDED_AGAIN,
            "",
            f"{stored}, which are dequantized and rounded a second time to {tag}",
            hint=f"{advice}{f', {given}' if given else ''}." if advice else "",
        )


def dense_layers(
    config: Quantization, dense: Sequence[str], quantized: Sequence[str]
) -> Iterator[Caution]:
    """Caution about layers stored dense in quantized files, but quantized by the section."""
    if not dense:
        return
    patterns: dict[str, None] = {}
    for name in dense:
        parts = name.split(".")
        short = [re.escape(".".join(parts[-count:])) + "$" for count in (1, 2)]
        layers = re.sub(r"(?<=\\\.)\d+(?=\\\.)", r"\\d+", re.escape(name))
        candidates = (*short, f"^{layers}$", f"^{re.escape(name)}$")
        patterns[next(p for p in candidates if not any(matches([p], n) for n in quantized))] = None
    import json  # most commands do not need it

    exclude = json.dumps([*config.exclude, *patterns])
    yield Caution(
        LEFT_DENSE,
        "exclude",
        f"{len(dense)} layers are dense in the files ({dense[0]}), and are rounded to "
        f"{type(config).__setpoint__.tag}",
        valid=(exclude,),
        hint="This keeps them unchanged.",
    )


def why_not_joined(
    name: str, forms: Sequence[Form], rows: Sequence[int], factors: Sequence[float]
) -> str | None:
    """Reason why stacked matrices from files cannot be kept as one, or None."""
    uncut = all(count % forms[0].block[0] == 0 for count in rows)
    if len(set(forms)) == 1 and len(set(factors)) <= 1 and uncut and not forms[0].nested:
        return None
    return (
        f"{name} consists of {len(forms)} matrices in the files, whose scales cannot be combined, "
        f"so their values cannot be kept"
    )


def keeping(form: Form) -> tuple[str | None, dict[str, object]]:
    """Type and fields of the section that keeps a format; None if there is none."""
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
    """Nearest block sizes that divide all matrices."""
    sides = (n for rows, columns in shapes for n in ((rows, columns) if square else (columns,)))
    common = gcd(*sides)
    fit = [n for n in range(2, common + 1, 2) if common % n == 0]
    return tuple(map(str, sorted(sorted(fit, key=lambda n: abs(log(n / size)))[:3])))
