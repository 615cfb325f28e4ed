"""A small job whose sections take imported components."""

from setpoint.config import Config, field
from setpoint.config.component_sections import ImportedComponent, Partial


class Optimizer(Config):
    """A family."""

    lr: float = field(default=0.1, gt=0)


class Plain(Optimizer, type="plain"):
    """A variant."""

    eps: float = 1e-8


class Imported(Optimizer, ImportedComponent, type="import"):
    """Any other."""

    allowed_modules = ("torch.optim",)
    runtime_arguments = ("*",)


class Activation(Config):
    """A family that takes no imported components."""


class Relu(Activation, type="relu"):
    """A variant."""


class Net(Config):
    """The root."""

    optimizer: Optimizer = field(factory=Plain)
    act: Activation | Partial | None = None
    acts: tuple[Activation | Partial, ...] = ()
    only: Activation = field(factory=Relu)
