"""The section `[resilience]`: what keeps a long run healthy."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from setpoint.config import RUNTIME, Config, Period, Problem, check, field


class GarbageCollection(Config, role=RUNTIME):
    """Python's garbage is collected at a pace, on all ranks at once, and not in between."""

    every: Period = field(
        default=Period("100 steps"), also_called=("gc_freq", "gc_steps", "period_steps")
    )
    """How often; it is also collected once at the start."""

    generation: int = field(default=1, ge=0, le=2)
    """Which objects, by Python's generations: 0 the youngest only; 1 those that have outlived one
    collection as well; 2 all that were made since the start."""

    automatic: bool = field(default=False, also_called=("disable_automatic",))
    """Whether Python collects by itself in between as well. In any case it does again at the end,
    as before."""

    @check
    def _check_every(self) -> Iterator[Problem]:
        if self.every.unit == "never" and self.automatic:
            yield Problem(
                "every",
                "never, while Python goes on by itself, is written gc = null",
                also=("automatic",),
            )


class Resilience(Config, role=RUNTIME):
    """What keeps a long run healthy."""

    gc: GarbageCollection | None = field(default=None, also_called=("garbage_collection",))
    """When Python's garbage is collected; null: when Python sees fit."""


class TrainingResilience(Resilience, role=RUNTIME):
    """What keeps a training run healthy."""

    grace_period: float = field(
        default=120.0,
        gt=0,
        lt=inf,
        also_called=("preemption_timeout", "signal_grace_period", "kill_wait"),
    )
    """Seconds that the step under way gets to end after Ctrl-C or SIGTERM, so that a checkpoint can
    be saved; then the process leaves without one. Give it less than your scheduler does until it
    kills. A save that has begun is not cut short."""
