"""The configuration of the optimizer and of the learning-rate schedule."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING

from setpoint.config import Config, Problem, check, derive, derived, field
from setpoint.config.foreign.section import Foreign
from setpoint.config.typed import Builds

if TYPE_CHECKING:
    from torch.optim import Optimizer  # noqa: F401 - a text names it

WARMUP = (
    "warmup_iters",
    "num_warmup_steps",
    "lr_warmup_steps",
    "lr_warmup_iters",
    "warmup_ratio",
    "warmup_fraction",
    "lr_warmup_fraction",
    "t_warmup",
)


class OptimizerConfig(Builds["Optimizer"]):
    """What all optimizers share."""

    lr: float = field(
        default=3e-4,
        gt=0,
        lt=inf,
        tags=("learning_rate",),
        also_called=("learning_rate", "base_lr", "max_lr", "peak_lr"),
    )
    """Peak learning rate; the schedule multiplies it by a factor at each update."""

    weight_decay: float = field(default=0.1, ge=0, lt=inf)
    """Decoupled decay: a decayed weight is multiplied by 1 - lr * weight_decay at each update.
    Norm weights and biases (parameters with fewer than two dimensions) do not decay."""

    clip_norm: float | None = field(
        default=1.0,
        gt=0,
        also_called=(
            "max_grad_norm",
            "max_norm",
            "grad_clip",
            "clip_grad",
            "clip_grad_norm",
            "gradient_clip_val",
            "gradient_clipping",
        ),
    )
    """Scale gradients down where their global norm exceeds this; null: never. The norm is
    measured and logged in any case."""


class AdamW(OptimizerConfig, type="adamw", owner="setpoint.optim.adamw:build_adamw"):
    """AdamW (Loshchilov and Hutter, 2019)."""

    betas: tuple[float, float] = field(
        default=(0.9, 0.95),
        item_ge=0,
        item_lt=1,
        also_called=("adam_beta1", "adam_beta2", "beta1", "beta2", "adam_betas"),
    )
    """Decay rates of the running means of the gradient and of its square."""

    eps: float = field(
        default=1e-8, gt=0, lt=inf, also_called=("adam_epsilon", "adam_eps", "epsilon")
    )
    """Added to the root of the mean square gradient."""


class ImportedOptimizer(
    OptimizerConfig, Foreign, type="import", owner="setpoint.optim.imported:build_imported"
):
    """Any optimizer of PyTorch's form, by its import path; other keys are its arguments."""

    trusts = ("torch.optim",)
    handed = ("*",)

    weight_decay: float = field(default=0.0, ge=0, lt=inf)
    """Handed to the target, which gives it its own meaning: decoupled for some, added to the
    gradient for others. Norm weights and biases do not decay."""

    def _mistakes(self) -> Iterator[Problem]:
        from setpoint.config.foreign.signature import parameters_of, takes

        found = list(super()._mistakes())
        yield from found
        if any(problem.path == "target" for problem in found):
            return
        parameters = parameters_of(self.target.load())
        if parameters is not None and not takes(parameters, "lr"):
            yield Problem(
                "target", "takes no lr, so that neither optimizer.lr nor the schedule would count"
            )
        if self.weight_decay and parameters is not None and not takes(parameters, "weight_decay"):
            yield Problem(
                "weight_decay", f"has no effect: {self.target} takes none", hint="Remove it."
            )


class ScheduleConfig(Config):
    """What all schedules share: a factor between 0 and 1 on the peak learning rate."""


class Constant(ScheduleConfig, type="constant", owner="setpoint.optim.schedule:build_constant"):
    """A constant learning rate after a linear warm-up."""

    warmup_steps: int = field(default=0, ge=0, also_called=WARMUP)
    """Updates over which the factor rises linearly; the last of them has the full rate."""


class Cosine(ScheduleConfig, type="cosine", owner="setpoint.optim.schedule:build_cosine"):
    """A linear warm-up, then half a cosine down to a floor, which stays."""

    warmup_steps: int = derived(ge=0, also_called=WARMUP)
    """Updates over which the factor rises linearly; the last of them has the full rate. Unless
    given a twentieth of horizon_steps, rounded down."""

    horizon_steps: int = derived(
        ge=1,
        also_called=(
            "lr_decay_iters",
            "lr_decay_steps",
            "decay_steps",
            "num_training_steps",
            "t_max",
        ),
    )
    """Update, counted from 0, at which the floor is reached. Set by the training job to the
    number of its updates unless given."""

    floor: float = field(
        default=0.1,
        ge=0,
        le=1,
        also_called=("min_lr", "lr_min", "min_lr_ratio", "min_lr_rate", "eta_min", "alpha_f"),
    )
    """The lowest factor, as a fraction of the peak."""

    @derive("warmup_steps")
    def _derive_warmup_steps(self) -> int:
        return self.horizon_steps // 20

    @check
    def _check_warmup(self) -> Iterator[Problem]:
        if self.warmup_steps > self.horizon_steps:
            yield Problem(
                "warmup_steps",
                f"a warm-up of {self.warmup_steps} updates does not fit into "
                f"{self.horizon_steps} updates",
                valid=(str(self.horizon_steps), str(self.horizon_steps // 20)),
                also=("horizon_steps",),
            )
