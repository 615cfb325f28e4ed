"""A user's own project, with mistakes planted on the lines that say `# MISTAKE`.

Type checkers read this file; it is not run. `test_typing.py` expects an error on each marked line
and on no other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import setpoint as sp


class Model:
    """What a config builds; its config lies in it."""

    class Config(sp.Builds["Model"]):
        """The configuration of Model."""

        width: int = sp.field(default=8, ge=1)
        """Units."""

        mode: Literal["fast", "exact"] = "fast"
        """How."""

        inner: int = sp.derived(ge=1)
        """Twice the width unless given."""

        activation: Callable[[float], float] | None = None
        """A function."""

    def __init__(self, config: Model.Config, *, inputs: int = 1) -> None:
        self.shape = (inputs, config.width)

    def run(self) -> float:
        """Run."""
        return 0.0


class Adagrad:
    """Somebody else's optimizer."""

    def __init__(self, params: list[float], lr: float = 0.01, eps: float = 1e-10) -> None:
        self.lr = lr

    def step(self) -> None:
        """Step."""


class OptimizerConfig(sp.Builds[Adagrad]):
    """A family."""

    lr: float = sp.field(default=0.1, gt=0)
    """Rate."""


class Plain(OptimizerConfig, type="plain"):
    """A variant."""

    momentum: float = 0.9
    """Decay."""


class Data(sp.Config):
    """What must be given."""

    path: Path
    """Where."""

    buffer: sp.ByteSize = sp.ByteSize("16 MiB")
    """How much."""

    every: sp.Period = sp.Period("10 steps")
    """How often."""

    token: sp.Secret | None = None
    """How to sign in."""

    tags: list[str] = sp.field(factory=list[str])
    """Words."""


class Layer(sp.Config):
    """A union with a partial."""

    other: Plain | sp.Partial[Adagrad] | None = None
    """One or the other."""


class Job(sp.Config):
    """The root."""

    data: Data = sp.field()
    """Required."""

    model: Model.Config = sp.field(factory=Model.Config)
    """A section."""

    optimizer: sp.Component[OptimizerConfig, Adagrad] = sp.component(factory=Plain)
    """A family that takes partials as well."""

    user: sp.Free = sp.field(factory=sp.Free)
    """Free."""


def decay(value: float) -> float:
    """A function of the project."""
    return value / 2


def right() -> float:
    """Everything here is as it should be."""
    job = Job(data=Data(path=Path("x"), tags=["a"]), model=Model.Config(width=3, activation=decay))
    job.optimizer = Plain(momentum=0.5)
    job.optimizer = sp.partial(Adagrad, lr=0.3)
    job.model.mode = "exact"
    job.user.anything = 3
    wider = sp.resolve(job).model.evolve(width=job.model.width * 2)
    model: Model = wider.build(inputs=3)
    job.optimizer.build(parameters=[]).step()
    changed: Job = job.evolve(model=wider, optimizer=sp.partial(Adagrad, eps=1e-3))
    size: int = changed.data.buffer // 2 + wider.inner
    job.data = job.data.evolve(tags=["b"])
    made: Adagrad = sp.partial(Adagrad, lr=0.1)([1.0])
    layer = Layer(other=sp.partial(Adagrad, lr=0.2))
    if not isinstance(layer.other, Plain | None):
        layer.other([1.0]).step()
    return model.run() + size + made.lr + changed.optimizer.lr


def wrong(job: Job) -> None:
    """Each line has one mistake."""
    Model.Config(widht=3)  # MISTAKE: a misspelt field in a constructor
    Model.Config(width="wide")  # MISTAKE: a text for a number
    Model.Config(mode="slow")  # MISTAKE: a word that is none of the choices
    Data()  # MISTAKE: a required field is missing
    Data(Path("x"))  # MISTAKE: fields are given by name
    job.modle = Model.Config()  # MISTAKE: a misspelt field in an assignment
    job.model.width = 3.5  # MISTAKE: a float for a whole number
    job.model.mode = "slow"  # MISTAKE: a word that is none of the choices
    job.optimizer = Model.Config()  # MISTAKE: a section of another family
    job.data.buffer = "16 MiB"  # MISTAKE: texts are for files; Python has ByteSize
    print(job.model.hight)  # MISTAKE: a misspelt field in a read
    job.model.evolve(widht=3)  # MISTAKE: a misspelt field in evolve
    job.model.evolve(width="wide")  # MISTAKE: a text for a number in evolve
    job.data.evolve(tags=3)  # MISTAKE: a number for a list, in a class with a required field
    job.model.build().fly()  # MISTAKE: the owner has no such method
    job.optimizer.build().lr = "high"  # MISTAKE: the family's result is known, too
    sp.partial(Adagrad, rate=0.3)  # MISTAKE: a parameter that the target does not have
    sp.partial(Adagrad, lr="high")  # MISTAKE: a text for a number in a partial
    job.optimizer = sp.partial(decay, 1.0)  # MISTAKE: a partial that makes something else
    Layer(other=sp.partial(decay, 1.0))  # MISTAKE: a partial of something else in a union
    text: str = sp.resolve(job).model.width  # MISTAKE: resolve keeps the types of fields
    print(text)
    sp.field(default=3, minimum=1)  # MISTAKE: an option that no field has
    sp.field(default=3, ge="1")  # MISTAKE: a text for a limit
    count: int = sp.field(default="3", ge=1)  # MISTAKE: a default of another type
    print(count)
