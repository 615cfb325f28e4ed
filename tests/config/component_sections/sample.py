"""A small job whose sections take imported components."""

from setpoint.config import Config, field
from setpoint.config.component_sections import ImportedComponent, Partial


class Optimizer(Config):
    """A family."""

    lr: float = field(default=0.1, gt=0)
    """Rate."""


class Plain(Optimizer, type="plain"):
    """A variant."""

    eps: float = 1e-8
    """Small."""


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
    """A family with a variant for foreign ones."""

    act: Activation | Partial | None = None
    """A union that takes them."""

    acts: tuple[Activation | Partial, ...] = ()
    """Several."""

    only: Activation = field(factory=Relu)
    """None."""
