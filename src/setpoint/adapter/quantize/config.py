"""The section `adapter.quantize`: the format of frozen base weights."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, inf
from typing import Final, Literal

from setpoint.config import RUNTIME, Config, Problem, check, dead, field
from setpoint.shapes.parameter import pattern_problems

SCALES_PER_SCALE: Final = 256
"""Of double quantization."""
MX_BLOCK: Final = 32
"""Weights with one power of two."""


class Noise(Config):
    """Adaptive quantization noise (AQN; QeRL, Huang et al., 2025), in training only.

    W' = dequantized W + alpha * half a quantization step * N(0, 1), elementwise, drawn anew in each
    step from the seed, the step and the module's name.
    """

    alpha: float = field(default=1.0, gt=0, lt=inf)
    """Standard deviation of the noise, in halves of a quantization step."""

    final_alpha: float | None = field(default=None, gt=0, lt=inf)
    """alpha after decay_steps, where it stays; null: constant."""

    decay: Literal["exponential", "linear"] = "exponential"
    """Curve from alpha to final_alpha."""

    decay_steps: int = field(default=1000, ge=1)
    """Steps from alpha to final_alpha."""

    @dead("decay", "decay_steps")
    def _decay_is_dead(self) -> str | None:
        return "alpha is constant: final_alpha is null" if self.final_alpha is None else None

    def alpha_at(self, step: int) -> float:
        """The standard deviation in a step.

        Arguments:
            step: how many were taken before.
        """
        if self.final_alpha is None:
            return self.alpha
        share = min(1.0, step / self.decay_steps)
        if self.decay == "linear":
            return self.alpha + share * (self.final_alpha - self.alpha)
        return self.alpha * (self.final_alpha / self.alpha) ** share


class Quantization(Config):
    """Base weights in few bits; scales are computed per block."""

    exclude: tuple[str, ...] = ()
    """Linear layers and experts that stay unquantized, beside the output matrix (lm_head) and
    routers: regular expressions searched in names as in adapter.targets."""

    noise: Noise | None = None
    """Quantization noise in training (AQN); null: none."""

    @property
    def columns(self) -> int | None:
        """Length of a block along a row; None: a whole row."""
        return None

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return 1

    def stored_bytes(self, rows: int, columns: int) -> int:
        """What a matrix takes: numbers of 8 bits, and a scale in fp32 for each block."""
        return rows * columns + 4 * self.blocks(rows, columns)

    def blocks(self, rows: int, columns: int) -> int:
        """How many blocks a matrix has."""
        return (rows // self.rows) * (columns // (self.columns or columns))

    @check
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

    @property
    def columns(self) -> int:
        """See `Quantization.columns`."""
        return self.group_size

    def stored_bytes(self, rows: int, columns: int) -> int:
        """See `Quantization.stored_bytes`: half a byte, and a scale of one or of four."""
        blocks = self.blocks(rows, columns)
        scales = blocks + 4 * ceil(blocks / SCALES_PER_SCALE) + 4 if self.double else 4 * blocks
        return rows * columns // 2 + scales

    @check
    def _check_group_size(self) -> Iterator[Problem]:
        yield from _odd(self.group_size)


class Int8(Quantization, type="int8"):
    """8-bit integers, symmetric: scales are the largest magnitude of a block / 127."""

    group_size: int | None = field(default=None, ge=1)
    """Weights of a row that share a scale, a divisor of the number of inputs; null: a row."""

    @property
    def columns(self) -> int | None:
        """See `Quantization.columns`."""
        return self.group_size


class FP8(Quantization, type="fp8"):
    """8-bit floats (E4M3) in square blocks: scales are the largest magnitude / 448."""

    group_size: int = field(default=128, ge=1)
    """Side of the squares of weights that share a scale; a divisor of both sides of a matrix."""

    @property
    def columns(self) -> int:
        """See `Quantization.columns`."""
        return self.group_size

    @property
    def rows(self) -> int:
        """See `Quantization.rows`."""
        return self.group_size


class NVFP4(Quantization, type="nvfp4"):
    """4-bit floats (E2M1) with an E4M3 scale per block and an fp32 scale of the matrix."""

    group_size: int = field(default=16, ge=2)
    """Weights of a row that share a scale; even, and a divisor of the number of inputs."""

    backend: Literal["auto", "torch", "torchao"] = field(default="auto", role=RUNTIME)
    """Library that quantizes and dequantizes; auto: torchao on a GPU where it is installed, else
    torch."""

    @property
    def columns(self) -> int:
        """See `Quantization.columns`."""
        return self.group_size

    def stored_bytes(self, rows: int, columns: int) -> int:
        """See `Quantization.stored_bytes`: half a byte, a scale of one, and one for all."""
        return rows * columns // 2 + self.blocks(rows, columns) + 4

    @check
    def _check_group_size(self) -> Iterator[Problem]:
        yield from _odd(self.group_size)


class MXFP4(Quantization, type="mxfp4"):
    """4-bit floats (E2M1) with a power of two per 32 weights of a row (OCP MX), as of GPT-OSS."""

    @property
    def columns(self) -> int:
        """See `Quantization.columns`."""
        return MX_BLOCK

    def stored_bytes(self, rows: int, columns: int) -> int:
        """See `Quantization.stored_bytes`: half a byte, and a scale of one."""
        return rows * columns // 2 + self.blocks(rows, columns)


def _odd(size: int) -> Iterator[Problem]:
    """Blocks that would end in the middle of a byte."""
    if size % 2:
        yield Problem(
            "group_size",
            f"{size} is odd, and two weights are stored in a byte",
            valid=(str(size - 1), str(size + 1)),
        )
