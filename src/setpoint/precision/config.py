"""The section `[precision]`: dtypes of parameters, compute, gradients and optimizer state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Literal

from setpoint.config import RUNTIME, Config, Problem, dead, field, rule
from setpoint.shapes.patterns import is_pattern, matches, pattern_problems, unmatched

Stored = Literal["fp32", "bf16"]
SKIP = (r"^output$", r"lm_head$", r"router")
FP16_ON_CPU = (
    "fp16 needs a GPU: on a CPU its matrix products are hundreds of times slower than those of fp32"
)
ON_A_GPU = "On a GPU, set --parallel.device cuda."


class LossScale(Config):
    """Dynamic loss scaling for fp16 (torch.amp.GradScaler)."""

    initial: float = field(default=65536.0, gt=0, lt=inf)
    """Initial loss scale (init_scale)."""

    growth: float = field(default=2.0, gt=1, lt=inf)
    """Growth factor (growth_factor): multiplies the scale after growth_interval steps without
    overflow."""

    backoff: float = field(default=0.5, gt=0, lt=1)
    """Backoff factor (backoff_factor): multiplies the scale after an overflow, whose step is
    skipped."""

    growth_interval: int = field(default=2000, ge=1)
    """Growth interval: steps without overflow after which the scale grows."""


Float8Recipe = Literal[
    "tensorwise", "rowwise", "rowwise_with_gw_hp", "mxfp8", "mxfp8_with_gw_hp", "nvfp4"
]
MX_BLOCK = 32
"""Values along a row that share a scale in MXFP8."""
HARDWARE: dict[str, tuple[tuple[int, int], str]] = {
    "tensorwise": ((8, 9), "Ada or Hopper"),
    "rowwise": ((9, 0), "Hopper"),
    "rowwise_with_gw_hp": ((9, 0), "Hopper"),
    "mxfp8": ((10, 0), "Blackwell"),
    "mxfp8_with_gw_hp": ((10, 0), "Blackwell"),
    "nvfp4": ((10, 0), "Blackwell"),
}
"""The first compute capability whose tensor cores have the products of a recipe, and its name."""


def multiple_of(recipe: str) -> int:
    """The number of which both sides of a weight, and the rows of its input, must be multiples."""
    return {"mxfp8": MX_BLOCK, "mxfp8_with_gw_hp": MX_BLOCK, "nvfp4": 128}.get(recipe, 16)


class Float8(Config):
    """Linear layers in float8, MXFP8 or NVFP4 (torchao), forward and backward."""

    recipe: Float8Recipe = "tensorwise"
    """Scaling recipe (hardware): tensorwise: a scale per tensor (Ada, Hopper); rowwise: per row, in
    powers of two (Hopper); mxfp8: per 32 values of a row (Blackwell); nvfp4: 4 bits, a scale per 16
    values, random Hadamard transform and stochastic rounding (Blackwell); with_gw_hp: gradients of
    weights in bf16."""

    gather: bool | None = field(default=None, role=RUNTIME)
    """Gather sharded weights of these layers in float8 (FSDP2): half the bytes of bf16, with the
    same result bit for bit. null: where recipe is tensorwise; other recipes have scales for each
    rank's part."""

    skip: tuple[str, ...] = field(factory=lambda: SKIP)
    """Regular expressions searched in the names of linear layers; matching layers stay in bf16."""

    skip_small: bool = False
    """Leave linear layers in bf16 if their products are too small for a gain, by torchao's
    thresholds on an H100 (tensorwise: inputs <= 4096 and outputs <= 1024; other recipes: outputs <=
    2048, or inputs <= 1024, or outputs <= 4096 and inputs <= 2048), or if their dimensions do not
    fit the recipe."""

    experts: bool = False
    """Compute grouped products of packed experts by the recipe as well (rowwise, mxfp8 and those
    with_gw_hp); false: in bf16. skip_small does not apply to them."""

    emulate: bool = field(default=False, role=RUNTIME)
    """Emulate float8 products in fp32 on any device, for tests: slow. nvfp4 has no emulation."""

    @property
    def capability(self) -> tuple[tuple[int, int], str]:
        """The first compute capability that supports these products, and its generation's name."""
        return HARDWARE[self.recipe]

    def gathers(self, reshard: bool | int | None) -> bool:
        """True if FSDP2, when it shards these layers, gathers them in float8.

        Arguments:
            reshard: `parallel.reshard`; if it is a number of ranks, FSDP2 keeps the weights as
                stored.
        """
        gathers_whole = reshard is None or isinstance(reshard, bool)
        return self.recipe == "tensorwise" and self.gather is not False and gathers_whole

    def is_small(self, rows: int, columns: int) -> bool:
        """True if `skip_small` leaves out a layer with these numbers of outputs and inputs."""
        if not self.skip_small:
            return False
        if rows % multiple_of(self.recipe) or columns % multiple_of(self.recipe):
            return True
        if self.recipe == "tensorwise":
            return columns <= 4096 and rows <= 1024
        return rows <= 2048 or columns <= 1024 or (rows <= 4096 and columns <= 2048)

    @dead("gather", holds=(False,))
    def _gather_is_dead(self) -> str | None:
        if self.recipe == "tensorwise":
            return None
        return f"recipe = {self.recipe} has no scale of a whole weight, which shards could share"

    @rule
    def _check_experts(self) -> Iterator[Problem]:
        if self.experts and self.recipe in ("tensorwise", "nvfp4"):
            yield Problem(
                "experts",
                f"has no grouped products for recipe = {self.recipe}, which torchao does not have",
                valid=("false",),
                also=("recipe",),
                hint="Or set recipe to rowwise or mxfp8.",
            )

    @rule
    def _check_emulation(self) -> Iterator[Problem]:
        if self.emulate and self.recipe == "nvfp4":
            yield Problem(
                "emulate",
                "does not support nvfp4, whose kernels exist only in Triton",
                valid=("false",),
                also=("recipe",),
            )

    @rule
    def _check_skip(self) -> Iterator[Problem]:
        for index, pattern in enumerate(self.skip):
            yield from pattern_problems(f"skip.{index}", pattern)


class Precision(Config):
    """Mixed precision: dtypes of parameters, compute, gradients and optimizer state."""

    params: Stored = "fp32"
    """Parameter dtype, for weights and their gradients."""

    compute: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Compute dtype of matrix products (autocast). bf16 is about twice as fast as fp32 where
    supported; fp16 needs a GPU."""

    gather: Stored | None = field(default=None, role=RUNTIME)
    """Dtype in which sharded fp32 weights of linear layers and packed experts are gathered (FSDP2);
    norms and embeddings are gathered in fp32, gradients reduced in `reduce`. null: bf16 where
    compute is bf16, which gives the same result bit for bit."""

    reduce: Stored | None = None
    """Gradient dtype of accumulation over micro-batches and reduction over ranks; null: as
    params."""

    master: Literal["fp32"] | None = None
    """Master weights dtype: a copy of bf16 weights that the optimizer updates and from which the
    model's weights are rounded; fp32 weights need no copy. null: none."""

    optimizer_state: Stored | None = None
    """Optimizer state dtype (exp_avg, exp_avg_sq); null: as the weights that the optimizer
    updates."""

    tf32: bool | None = None
    """TF32 for fp32 matrix products and convolutions on a GPU (torch's matmul precision "high"):
    several times faster, with 10 bits of mantissa; null: false, with a caution where compute is
    fp32."""

    float8: Float8 | None = None
    """Float8, MXFP8 or NVFP4 products of linear layers; null: off."""

    loss_scale: LossScale | None = None
    """Dynamic loss scaling for fp16 (GradScaler); null: PyTorch's defaults."""

    def sharded(self, is_sharded: bool) -> Stored:
        """The dtype of a rank's own part of the trained weights.

        Arguments:
            is_sharded: whether FSDP2 divides the weights (`parallel.uses_fsdp`): its shards are
                then the masters, from which gathered weights are rounded.
        """
        return self.updated if is_sharded else self.params

    def gathered(self, is_sharded: bool) -> Stored:
        """Dtype of the full weights of matrix products; all others keep the dtype `params`."""
        if self.params == "bf16" or not is_sharded:
            return self.params
        return self.gather or ("bf16" if self.compute == "bf16" else "fp32")

    @property
    def updated(self) -> Stored:
        """The dtype of the weights that the optimizer updates: the masters, or the model's own."""
        return self.master or self.params

    @property
    def copies_master(self) -> bool:
        """True if master copies exist next to the weights; fp32 weights are their own masters."""
        return self.master is not None and self.params != "fp32"

    @rule
    def _check_formats(self) -> Iterator[Problem]:
        if self.params == "bf16" and self.compute != "bf16":
            yield Problem(
                "compute",
                f"matrix products of bf16 weights cannot use {self.compute}",
                valid=("bf16",),
                also=("params",),
            )
        if self.gather == "bf16" and self.compute != "bf16":
            yield Problem(
                "gather",
                f"rounds weights of matrix products in {self.compute}",
                valid=("null", "fp32"),
                also=("compute",),
            )
        if self.float8 is not None and self.compute != "bf16":
            yield Problem(
                "float8",
                f"requires bf16 for everything that is not float8, not {self.compute}",
                valid=("null",),
                also=("compute",),
            )
        if self.loss_scale is not None and self.compute != "fp16":
            yield Problem(
                "loss_scale",
                f"has no effect: only fp16 scales the loss, and compute is {self.compute}",
                valid=("null",),
                also=("compute",),
            )


def fp16_problems(path: str, chosen: str, device: str) -> Iterator[Problem]:
    """Find fp16 on a device other than a GPU.

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
        the layers that are not small and that no pattern of `skip` matches.
    """
    return [
        name
        for name, size in layers.items()
        if not skips(config, name) and not config.is_small(*size)
    ]


def skips(config: Float8, name: str) -> bool:
    """True if a pattern of `skip` matches a name."""
    return matches(filter(is_pattern, config.skip), name)


def layer_problems(
    config: Float8,
    layers: Mapping[str, tuple[int, int]],
    experts: Mapping[str, tuple[int, int]],
) -> Iterator[Problem]:
    """Find values of the section that do not suit the layers of a model.

    Arguments:
        layers: (out, in) features of linear layers, by name.
        experts: (width, dim) of packed experts, by name.

    Returns:
        problems of `skip` or of the section as a whole; paths are relative to it.
    """
    wanted_experts = [name for name in experts if not skips(config, name)]
    if config.experts and not wanted_experts:
        why = "skip matches all of them" if experts else "the model has none, as [model.moe] builds"
        yield Problem("experts", f"matches no packed experts: {why}", valid=("false",))
    if config.skip != SKIP:  # the default patterns are for several kinds of model
        names = [*layers, *experts] if config.experts else [*layers]
        population = "linear layers and packed experts" if config.experts else "linear layers"
        yield from unmatched("skip", config.skip, names, population)
    to_convert = converted(config, layers)
    if not to_convert and not config.experts:
        qualifier = " and that is large enough" if config.skip_small else ""
        yield Problem(
            "skip_small" if config.skip_small else "",
            f"finds no linear layer: the model has none that skip does not match{qualifier}",
            valid=("false",) if config.skip_small else (),
        )
    multiple = multiple_of(config.recipe)
    sizes = {**layers, **experts}
    to_convert += wanted_experts if config.experts else []
    wrong = [name for name in to_convert if any(size % multiple for size in sizes[name])]
    if wrong:
        rows, columns = sizes[wrong[0]]
        qualifier = f"; {len(wrong) - 1} other layers do not fit either" if len(wrong) > 1 else ""
        yield Problem(
            "",
            f"requires matrix dimensions that are multiples of {multiple}, but {wrong[0]} is "
            f"{rows} x {columns}{qualifier}",
            hint="Change the sizes of the model, add these layers to float8.skip, or set "
            "float8.skip_small to true.",
        )
