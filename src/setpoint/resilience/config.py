"""The section `[resilience]`: garbage collection and shutdown."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from setpoint.config import RUNTIME, Config, Problem, check, field
from setpoint.units import Period


class GarbageCollection(Config, role=RUNTIME):
    """Manual garbage collection at an interval, on all ranks at once."""

    every: Period = field(
        default=Period("100 steps"), also_called=("gc_freq", "gc_steps", "period_steps")
    )
    """Garbage collection interval; it is also collected once at the start."""

    generation: int = field(default=1, ge=0, le=2)
    """Garbage collection generation: 0 the youngest objects only; 1 those that have outlived one
    collection as well; 2 all that were made since the start."""

    automatic: bool = field(default=False, also_called=("disable_automatic",))
    """Keep automatic garbage collection on in between (gc.enable). At the end it is as before in
    any case."""

    @check
    def _check_every(self) -> Iterator[Problem]:
        if self.every.unit == "never" and self.automatic:
            yield Problem(
                "every",
                "never, while Python goes on by itself, is written gc = null",
                also=("automatic",),
            )


class Resilience(Config, role=RUNTIME):
    """Garbage collection and shutdown."""

    gc: GarbageCollection | None = field(default=None, also_called=("garbage_collection",))
    """Manual Python garbage collection (gc); null: Python's automatic collection."""


class TrainingResilience(Resilience, role=RUNTIME):
    """Garbage collection and shutdown of a training run."""

    grace_period: float = field(
        default=120.0,
        gt=0,
        lt=inf,
        also_called=("preemption_timeout", "signal_grace_period", "kill_wait"),
    )
    """Grace period in seconds: after Ctrl-C or SIGTERM the step under way may end and a checkpoint
    is saved; after it the process exits without one. Set it below your scheduler's kill timeout. A
    save that has begun is not cut short."""
