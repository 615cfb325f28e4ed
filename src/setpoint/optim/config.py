"""The configuration of the optimizer and of the learning-rate schedule."""

from __future__ import annotations

from collections.abc import Iterator

from setpoint.config import Config, Problem, check, derive, derived, field


class OptimizerConfig(Config):
    """What all optimizers share."""

    lr: float = field(default=3e-4, gt=0)
    """Peak learning rate; the schedule multiplies it by a factor at each update."""

    weight_decay: float = field(default=0.1, ge=0)
    """Decoupled decay: a decayed weight is multiplied by 1 - lr * weight_decay at each update.
    Norm weights and biases (parameters with fewer than two dimensions) do not decay."""

    clip_norm: float | None = field(default=1.0, gt=0)
    """Scale gradients down where their global norm exceeds this; null: never. The norm is
    measured and logged in any case."""


class AdamW(OptimizerConfig, type="adamw", owner="setpoint.optim.adamw:build_adamw"):
    """AdamW (Loshchilov and Hutter, 2019)."""

    betas: tuple[float, float] = field(default=(0.9, 0.95), item_ge=0, item_lt=1)
    """Decay rates of the running means of the gradient and of its square."""

    eps: float = field(default=1e-8, gt=0)
    """Added to the root of the mean square gradient."""


class ScheduleConfig(Config):
    """What all schedules share: a factor between 0 and 1 on the peak learning rate."""


class Constant(ScheduleConfig, type="constant", owner="setpoint.optim.schedule:build_constant"):
    """A constant learning rate after a linear warm-up."""

    warmup_steps: int = field(default=0, ge=0)
    """Updates over which the factor rises linearly; the last of them has the full rate."""


class Cosine(ScheduleConfig, type="cosine", owner="setpoint.optim.schedule:build_cosine"):
    """A linear warm-up, then half a cosine down to a floor, which stays."""

    warmup_steps: int = derived(ge=0)
    """Updates over which the factor rises linearly; the last of them has the full rate. Unless
    given a twentieth of horizon_steps, rounded down."""

    horizon_steps: int = derived(ge=1)
    """Update, counted from 0, at which the floor is reached. Set by the training job to the
    number of its updates unless given."""

    floor: float = field(default=0.1, ge=0, le=1)
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
