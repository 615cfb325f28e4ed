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
    active: int = field(default=2, ge=1)

    @rule
    def _check_active(self) -> Iterator[Problem]:
        if self.active > self.count:
            yield Problem("active", f"{self.active} of {self.count} experts", also=("count",))


class Transformer(ModelConfig, type="transformer", owner=f"{__name__}:BuiltModel"):
    """A transformer."""

    dim: int = field(default=192, ge=1, le=100_000)
    heads: int = field(default=6, ge=1)
    head_dim: int = derived(ge=1)
    """Width of a head; dim / heads unless given."""

    context: int = derived(ge=1)
    dropout: float = field(default=0.0, ge=0, lt=1)
    experts: Experts | None = None

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
    cell: Literal["gru", "lstm"] = "gru"


class OptimizerConfig(Config):
    """What all optimizers share."""

    lr: float = field(default=3e-4, gt=0)
    """Peak learning rate."""

    clip_norm: float | None = field(default=1.0, gt=0)


class AdamW(OptimizerConfig, type="adamw", owner=f"{__name__}:build_optimizer"):
    """AdamW."""

    betas: tuple[float, float] = field(default=(0.9, 0.95), item_ge=0, item_lt=1)


class Sgd(OptimizerConfig, type="sgd", owner=f"{__name__}:build_optimizer"):
    """Stochastic gradient descent."""

    momentum: float = field(default=0.9, ge=0, lt=1)
    nesterov: bool = False

    @dead("nesterov")
    def _nesterov_dead(self) -> str | None:
        return (
            "without momentum there is nothing to look ahead along" if not self.momentum else None
        )


class SourceConfig(Config):
    """Where documents come from."""

    weight: float = field(default=1.0, gt=0)


class Text(SourceConfig, type="text"):
    """Text files."""

    paths: tuple[str, ...] = field()
    separator: str | None = None


class Synthetic(SourceConfig, type="synthetic"):
    """Made up documents."""

    documents: int = field(default=256, ge=1)
    length: int = derived(ge=1)

    @derive("length")
    def _derive_length(self) -> int:
        return 16 * self.documents


class Batch(Config):
    """How many sequences make an update."""

    size: int = field(default=32, ge=1)
    sequence_length: int = field(default=256, ge=1)


class Tracker(Config, role=RUNTIME):
    """Where metrics are sent."""

    url: str = field(pattern=r"https?://.*")
    token: Secret | None = None


class Mode(enum.Enum):
    """How sure the result must be."""

    EXACT = 1
    FAST = 2


class Job(Config):
    """The root."""

    name: str = field(default="job", pattern=r"[a-z0-9-]+", role=RUNTIME)
    seed: int | None = field(default=1234, ge=0)
    """Decides all random numbers."""

    duration: Duration = field(default=Duration("300 steps"), role=BUDGET)
    deterministic: bool = False
    mode: Mode = Mode.FAST
    compute: Literal["bf16", "fp32"] = "fp32"
    warmup: int | Literal["auto"] = field(default="auto", ge=0)
    log_every: Period = field(default=Period("10 steps"), role=RUNTIME)
    folder: Path = field(default=Path("runs"), role=RUNTIME)
    model: ModelConfig = field(factory=Transformer)
    optimizer: OptimizerConfig = field(factory=AdamW)
    sources: tuple[SourceConfig, ...] = field(factory=lambda: (Synthetic(),))
    batch: Batch = field(factory=Batch)
    tracker: Tracker | None = None
    evaluations: dict[str, Batch] = field(factory=dict)
    tags: list[str] = field(factory=list, role=RUNTIME)
    thresholds: dict[str, float] = field(factory=dict, item_gt=0)
    user: Free = field(factory=Free)

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
