"""The section `adapter`: low-rank adapters, the format of frozen base weights, and merges."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from math import ceil, inf
from typing import ClassVar, Final, Literal

from setpoint.config import RUNTIME, Config, Problem, dead, field, rule
from setpoint.shapes.parameter import Form
from setpoint.shapes.patterns import is_pattern, pattern_problems
from setpoint.units import Length, Period

PATTERNS = ("query", "feed_forward")
"""Valid values in place of an empty pattern."""

SCALES_PER_SCALE: Final = 256
"""Group size of scales in double quantization."""
MX_BLOCK: Final = 32
"""Weights per scale of MXFP4."""
BITSANDBYTES_SIZES: Final = (32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Block sizes of NF4 that bitsandbytes has kernels for."""


def has_bitsandbytes() -> bool:
    """True if bitsandbytes is installed."""
    return find_spec("bitsandbytes") is not None


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

    def backend_on(self, device: str) -> str:
        """The library that quantizes and dequantizes on a type of device."""
        if self.backend != "auto":
            return self.backend
        fits = self.group_size in BITSANDBYTES_SIZES and device == "cuda"
        return "bitsandbytes" if fits and has_bitsandbytes() else "torch"

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


class Merge(Config):
    """Periodic merges of the adapter into the base weights during training (ReLoRA)."""

    every: Period = Period("1000 steps")
    """Interval between merges in steps: W becomes the merged weight, A is reinitialized, and B
    becomes zero, so that the model computes the same function."""

    optimizer_state: Literal["drop", "keep"] = "drop"
    """Optimizer state of A, B and magnitude at a merge. drop: moments restart at zero; keep:
    moments continue."""

    rewarmup: Length = Length(0)
    """Learning-rate re-warm-up after each merge, in steps or as a share of the interval: the rate
    rises linearly from zero; 0: none."""

    @property
    def steps(self) -> int:
        """Steps between two merges."""
        return int(self.every.count)

    @property
    def warmup_steps(self) -> int:
        """Steps of re-warm-up after a merge."""
        share = self.rewarmup.share
        return int(self.rewarmup.count) if share is None else round(share * self.steps)

    def rate_factor(self, step: int) -> float:
        """The learning-rate factor of a step.

        Arguments:
            step: number of earlier steps.
        """
        if step < self.steps or not self.warmup_steps:
            return 1.0
        return min(1.0, (step % self.steps + 1) / self.warmup_steps)

    @rule
    def _check_units(self) -> Iterator[Problem]:
        if self.every.unit != "steps":
            yield Problem("every", "merges are counted in steps", valid=("1000 steps",))
        elif self.rewarmup.unit not in ("steps", "%"):
            yield Problem(
                "rewarmup", "is counted in steps, as merges are", valid=("50 steps", "5 %")
            )
        elif self.warmup_steps > self.steps:
            yield Problem(
                "rewarmup",
                f"{self.warmup_steps} steps do not end before the next merge, after {self.steps}",
                valid=(f"{max(1, self.steps // 10)} steps",),
                also=("every",),
            )


class PatternRank(Config):
    """Rank and alpha of the modules that match a pattern."""

    pattern: str
    """Regular expression searched in names of adapted modules; the first match applies."""

    rank: int | None = field(default=None, ge=1)
    """Rank of these modules; null: adapter.rank."""

    alpha: float | None = field(default=None, gt=0, lt=inf)
    """Alpha of these modules; null: adapter.alpha."""

    @rule
    def _check_pattern(self) -> Iterator[Problem]:
        yield from pattern_problems("pattern", self.pattern, PATTERNS)
        if self.rank is None and self.alpha is None:
            yield Problem(
                "pattern", "has no effect: neither rank nor alpha is given", hint="Remove it."
            )


class AdapterConfig(Config):
    """Low-rank adapter: W x + scale * B A x with a frozen W (LoRA, Hu et al., 2021)."""

    has_magnitude: ClassVar[bool] = False
    """True if the lengths of rows of merged weights are trained (DoRA)."""

    rank: int = field(default=16, ge=1)
    """Rank of the update: rows of A and columns of B."""

    alpha: float = field(default=16.0, gt=0, lt=inf)
    """Scale numerator: the update is multiplied by alpha / rank."""

    rank_stabilized: bool = False
    """Rank-stabilized scale (rsLoRA, Kalajdzievski, 2023): alpha / sqrt(rank)."""

    ranks: tuple[PatternRank, ...] = ()
    """Rank and alpha by patterns on names of modules."""

    dropout: float = field(default=0.0, ge=0, lt=1)
    """Dropout of the input of A, in training."""

    b_std: float = field(default=0.0, ge=0, lt=inf)
    """Standard deviation of the initial B, or of A for an embedding; 0: the adapted model starts
    equal to its base."""

    targets: tuple[str, ...] | None = None
    """Adapted modules: regular expressions searched in names of linear layers, embeddings and
    packed experts; null: all linear layers and experts within the layers."""

    exclude: tuple[str, ...] | None = None
    """Modules left without an adapter, by patterns as in targets; null: the output matrix
    (lm_head). Routers (MoE gates) never have one."""

    train: tuple[str, ...] = ()
    """Base parameters that are fully trained: regular expressions searched in parameter names. All
    others are frozen."""

    fused_projections: Literal["whole", "split"] = "whole"
    """Fused projections (merge_qkv). whole: one A for all; split: an A and a B for each of query,
    key and value."""

    merge: Merge | None = None
    """Merges into the base weights during training; null: none."""

    quantize: Quantization | None = None
    """Format of the frozen weights of all linear layers and packed experts, adapted or not (QLoRA);
    null: as precision.params."""

    def scale_of(self, rank: int, alpha: float) -> float:
        """The factor on an update."""
        return alpha / rank**0.5 if self.rank_stabilized else alpha / rank

    @property
    def can_be_searched(self) -> bool:
        """True if all patterns are valid regular expressions."""
        patterns = [*(self.targets or ()), *(self.exclude or ()), *self.train]
        patterns += [rule.pattern for rule in self.ranks]
        patterns += self.quantize.exclude if self.quantize is not None else ()
        return all(is_pattern(rule) for rule in patterns)

    @dead("rank_stabilized")
    def _scale_is_dead(self) -> str | None:
        ranks = [self.rank, *(rule.rank for rule in self.ranks if rule.rank is not None)]
        if self.rank_stabilized and set(ranks) == {1}:
            return "alpha / sqrt(1) is alpha / 1"
        return None

    @rule
    def _check_patterns(self) -> Iterator[Problem]:
        for name in ("targets", "exclude", "train"):
            for index, pattern in enumerate(getattr(self, name) or ()):
                yield from pattern_problems(f"{name}.{index}", pattern, PATTERNS)
        if self.targets == ():
            yield Problem(
                "targets", "is empty, so nothing would be adapted", valid=("null", '["query"]')
            )


class LoRA(AdapterConfig, type="lora"):
    """LoRA (Hu et al., 2021)."""


class DoRA(AdapterConfig, type="dora"):
    """DoRA (Liu et al., 2024): LoRA for the direction of each row, and a trained length."""

    has_magnitude: ClassVar[bool] = True


class ReLoRA(AdapterConfig, type="relora"):
    """ReLoRA (Lialin et al., 2023): LoRA with periodic merges into the base."""

    merge: Merge | None = field(factory=Merge)
    """Merges into the base weights during training."""

    @rule
    def _check_merge(self) -> Iterator[Problem]:
        if self.merge is None:
            yield Problem(
                "merge", "type = relora without merges is the same as type = lora", valid=("{}",)
            )


class QLoRA(AdapterConfig, type="qlora"):
    """QLoRA (Dettmers et al., 2023): LoRA on a base that is quantized to 4 bits."""

    quantize: Quantization | None = field(factory=NF4)
    """Format of the frozen weights of all linear layers and packed experts, adapted or not."""

    @rule
    def _check_quantize(self) -> Iterator[Problem]:
        if self.quantize is None:
            yield Problem(
                "quantize",
                "type = qlora without a format is the same as type = lora",
                valid=("nf4", "int8"),
            )
