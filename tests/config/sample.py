"""A small tree of configs like that of a training job, with every kind of field."""

import enum
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from setpoint.config import (
    BUDGET,
    RUNTIME,
    Config,
    Free,
    Problem,
    Secret,
    dead,
    derive,
    derived,
    field,
    rule,
)
from setpoint.units import Duration, Period


class ModelConfig(Config):
    """What all models share."""


class Experts(Config):
    """A mixture of experts."""

    count: int = field(default=8, ge=2)
    """How many experts."""

    active: int = field(default=2, ge=1)
    """How many of them see a token."""

    @rule
    def _check_active(self) -> Iterator[Problem]:
        if self.active > self.count:
            yield Problem("active", f"{self.active} of {self.count} experts", also=("count",))


class Transformer(ModelConfig, type="transformer", owner=f"{__name__}:BuiltModel"):
    """A transformer."""

    dim: int = field(default=192, ge=1, le=100_000)
    """Width of the residual stream."""

    heads: int = field(default=6, ge=1)
    """Attention heads."""

    head_dim: int = derived(ge=1)
    """Width of a head; dim / heads unless given."""

    context: int = derived(ge=1)
    """Longest sequence; that of the batch unless given."""

    dropout: float = field(default=0.0, ge=0, lt=1)
    """Share of activations that are dropped."""

    experts: Experts | None = None
    """A mixture of experts in place of each feed-forward layer."""

    @derive("head_dim")
    def _derive_head_dim(self) -> int:
        return self.dim // self.heads

    @rule
    def _check_heads(self) -> Iterator[Problem]:
        if self.dim % self.heads:
            yield Problem(
                "heads",
                f"{self.dim} (dim) is not divisible by {self.heads} heads",
                valid=[str(n) for n in range(1, self.dim + 1) if self.dim % n == 0][:4],
                also=("dim",),
            )


class Recurrent(ModelConfig, type="recurrent", owner=f"{__name__}:BuiltModel"):
    """A recurrent network."""

    dim: int = field(default=128, ge=1)
    """Width of the state."""

    cell: Literal["gru", "lstm"] = "gru"
    """Kind of cell."""


class OptimizerConfig(Config):
    """What all optimizers share."""

    lr: float = field(default=3e-4, gt=0)
    """Peak learning rate."""

    clip_norm: float | None = field(default=1.0, gt=0)
    """Largest norm of the gradient."""


class AdamW(OptimizerConfig, type="adamw", owner=f"{__name__}:build_optimizer"):
    """AdamW."""

    betas: tuple[float, float] = field(default=(0.9, 0.95), item_ge=0, item_lt=1)
    """Decay rates of the running means."""


class Sgd(OptimizerConfig, type="sgd", owner=f"{__name__}:build_optimizer"):
    """Stochastic gradient descent."""

    momentum: float = field(default=0.9, ge=0, lt=1)
    """Decay rate of the velocity."""

    nesterov: bool = False
    """Look ahead along the velocity."""

    @dead("nesterov")
    def _nesterov_dead(self) -> str | None:
        return (
            "without momentum there is nothing to look ahead along" if not self.momentum else None
        )


class SourceConfig(Config):
    """Where documents come from."""

    weight: float = field(default=1.0, gt=0)
    """Share in the mixture."""


class Text(SourceConfig, type="text"):
    """Text files."""

    paths: tuple[str, ...] = field()
    """Files and globs."""

    separator: str | None = None
    """What divides a file into documents."""


class Synthetic(SourceConfig, type="synthetic"):
    """Made up documents."""

    documents: int = field(default=256, ge=1)
    """How many."""

    length: int = derived(ge=1)
    """Bytes in each; sixteen times their number unless given."""

    @derive("length")
    def _derive_length(self) -> int:
        return 16 * self.documents


class Batch(Config):
    """How many sequences make an update."""

    size: int = field(default=32, ge=1)
    """Sequences."""

    sequence_length: int = field(default=256, ge=1)
    """Tokens in a sequence."""


class Tracker(Config, role=RUNTIME):
    """Where metrics are sent."""

    url: str = field(pattern=r"https?://.*")
    """Address of the server."""

    token: Secret | None = None
    """How to sign in."""


class Mode(enum.Enum):
    """How sure the result must be."""

    EXACT = 1
    FAST = 2


class Job(Config):
    """The root."""

    name: str = field(default="job", pattern=r"[a-z0-9-]+", role=RUNTIME)
    """Name of the run."""

    seed: int | None = field(default=1234, ge=0)
    """Decides all random numbers."""

    duration: Duration = field(default=Duration("300 steps"), role=BUDGET)
    """How long to train."""

    deterministic: bool = False
    """Whether to pay for results that repeat."""

    mode: Mode = Mode.FAST
    """How sure the result must be."""

    compute: Literal["bf16", "fp32"] = "fp32"
    """Number format."""

    warmup: int | Literal["auto"] = field(default="auto", ge=0)
    """Updates of warm-up."""

    log_every: Period = field(default=Period("10 steps"), role=RUNTIME)
    """When metrics are written."""

    folder: Path = field(default=Path("runs"), role=RUNTIME)
    """Where runs lie."""

    model: ModelConfig = field(factory=Transformer)
    """What is trained."""

    optimizer: OptimizerConfig = field(factory=AdamW)
    """What changes the weights."""

    sources: tuple[SourceConfig, ...] = field(factory=lambda: (Synthetic(),))
    """Where documents come from."""

    batch: Batch = field(factory=Batch)
    """How many sequences make an update."""

    tracker: Tracker | None = None
    """Where metrics are sent."""

    evaluations: dict[str, Batch] = field(factory=dict)
    """Further evaluations by name."""

    tags: list[str] = field(factory=list, role=RUNTIME)
    """Words to find the run by."""

    thresholds: dict[str, float] = field(factory=dict, item_gt=0)
    """Limits by metric."""

    user: Free = field(factory=Free)
    """Free."""

    @derive("model.context")
    def _derive_context(self) -> int:
        return self.batch.sequence_length


class BuiltModel:
    """What a model config builds."""

    def __init__(self, config: ModelConfig, **runtime: object) -> None:
        self.config = config
        self.runtime = runtime


def build_optimizer(config: OptimizerConfig, parameters: list[float]) -> tuple[float, list[float]]:
    """What an optimizer config builds."""
    return config.lr, parameters
