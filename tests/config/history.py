"""A root with a past: three schemas, with every kind of change between them."""

from collections.abc import Iterable

from setpoint.config import RUNTIME, Config, derive, derived, field
from setpoint.config.migrations import Added, Converted, Operation, Renamed, Retired, migration

# What a record of schema 1 held.
FIRST = {
    "name": "old",
    "optim": {"type": "adam_w", "lr": 0.1, "wd": 0.01, "warm": 100},
    "train": {"log_every": 5, "batch": 6, "lr_floor": 0.5},
    "hours": 1,
    "fp16": True,
    "sources": [{"path": "a", "w": 2.0}, {"path": "b", "w": 1.0}],
    "evaluation": None,
    "eval_every": 10,
}


class Source(Config):
    """Where text comes from."""

    path: str = "x"
    weight: float = 1.0


class Optimizer(Config):
    """What optimizers share."""

    lr: float = 0.1
    warmup_tokens: int = 0


class AdamW(Optimizer, type="adamw"):
    """AdamW."""

    weight_decay: float = 0.0
    fused: bool = field(default=True)


class Sgd(Optimizer, type="sgd"):
    """SGD."""


class Batch(Config):
    """Sizes."""

    micro: int = 1
    accumulation: int = 1
    total: int = derived()

    @derive("total")
    def _derive_total(self) -> int:
        return self.micro * self.accumulation


class Tracking(Config, role=RUNTIME):
    """What is shown."""

    every: int = 1


class Schedule(Config):
    """The curve."""

    floor: float = 0.1


class Evaluation(Config):
    """How it is judged."""

    every: int = 100


class Job(Config, schema=3, migrations=__name__):
    """The root."""

    name: str = field(default="job", role=RUNTIME)
    optimizer: Optimizer = field(factory=AdamW)
    batch: Batch = field(factory=Batch)
    tracking: Tracking = field(factory=Tracking)
    schedule: Schedule = field(factory=Schedule)
    minutes: int = 0
    sources: tuple[Source, ...] = ()
    evaluation: Evaluation | None = None
    seed: int = field(default=1)


@migration(to=2)
def optimizer_and_batch() -> Iterable[Operation]:
    """Names in full, and the batch as a section."""
    return [
        Converted("optim.type", lambda tag: {"adam_w": "adamw"}.get(tag, tag), "AdamW is one word"),
        Renamed("optim", "optimizer"),
        Renamed("optimizer.wd", "optimizer.weight_decay", of="adamw"),
        Renamed("train.batch", "batch.micro"),
        Converted("batch.micro", lambda n: n // 2, "counts one portion of two"),
        Added("batch.accumulation", 2),
        Retired("fp16", "it did nothing; use precision.compute", neutral=False),
        Renamed("sources.*.w", "sources.*.weight"),
        Added("optimizer.fused", False, of="adamw", what="the default is the fused kernel"),
    ]


@migration(to=3)
def sections() -> Iterable[Operation]:
    """No section named train."""
    return [
        Renamed("train.log_every", "tracking.log_every"),
        Renamed("train.lr_floor", "schedule.lr_floor"),
        Renamed("tracking.log_every", "tracking.every"),
        Renamed("schedule.lr_floor", "schedule.floor"),
        Renamed("hours", "minutes"),
        Converted("minutes", lambda hours: hours * 60, "counts minutes, not hours"),
        Renamed("optimizer.warm", "optimizer.warmup_tokens"),
        Converted("optimizer.warmup_tokens", lambda n: n * 1000, "counts tokens, not steps"),
        Renamed("eval_every", "evaluation.every"),
        Added("seed", 0),
        Added(
            "batch.total", lambda data: data["batch"]["micro"] * data["batch"]["accumulation"],
            derived=True,
        ),
    ]  # fmt: skip
