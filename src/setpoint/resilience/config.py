"""The section `[resilience]`: bad steps, limits, liveness, health and garbage collection."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Literal, Self

from setpoint.config import RUNTIME, Config, Invalid, Problem, field, rule
from setpoint.units import Length, Period
from setpoint.units.quantity import NUMBER, TIME_UNITS

TIMES = ("never", "3600 s", "90 min", "12 h")


class TimeLimit(Period):
    """A wall-clock limit: a time such as `"90 min"`, or `"never"`.

    Raises:
        Invalid: the text is neither a time nor `"never"`.
    """

    __slots__ = ()
    examples = TIMES
    __setpoint_scalar__ = "a time such as '3600 s', '90 min' or '12 h', or 'never'"
    __setpoint_json_schema__ = {  # noqa: RUF012 - read only
        "type": "string",
        "pattern": rf"^(\s*{NUMBER}\s*({'|'.join(TIME_UNITS)})\s*|never)$",
    }

    def __init__(self, text: str | int) -> None:
        try:
            super().__init__(text)
        except Invalid as error:
            error = Invalid(error.message, TIMES, hint=error.hint)
            raise error.called("TimeLimit", text) from None
        if self.unit not in ("never", "seconds"):
            hint = "Or end the run there with duration."
            error = Invalid(f"{self} is not a time", TIMES, hint=hint)
            raise error.called("TimeLimit", text)

    @classmethod
    def read(cls, value: object) -> Self:
        is_quantity = isinstance(value, Period | Length) and not isinstance(value, cls)
        return super().read(str(value) if is_quantity else value)


class GarbageCollection(Config, role=RUNTIME):
    """Manual Python garbage collection at a fixed interval, on all ranks at the same step."""

    every: Period = Period("100 steps")
    """Garbage collection interval; there is one collection at the start as well."""

    generation: int = field(default=1, ge=0, le=2)
    """Garbage collection generation (gc.collect). 0: youngest objects; 1: also survivors of one
    collection; 2: all objects created since the start."""

    automatic: bool = False
    """Leave automatic garbage collection on as well (gc.enable)."""

    @rule
    def _check_every(self) -> Iterator[Problem]:
        if self.every.unit == "never" and self.automatic:
            yield Problem(
                "every",
                "use gc = null to leave garbage collection to Python",
                also=("automatic",),
            )


class StepPolicy(Config, role=RUNTIME):
    """Bad-step policy: fail, skip or roll back."""


class FailStep(StepPolicy, type="fail"):
    """End the run before the step changes the weights."""


class SkipStep(StepPolicy, type="skip"):
    """Skip the optimizer step: weights and optimizer state stay, and the step counts."""

    limit: int = field(default=10, ge=1)
    """Maximum number of consecutive skipped steps; one more ends the run."""


class RollBack(StepPolicy, type="rollback"):
    """Roll back to the newest valid checkpoint; continue with the data after the failed step."""

    limit: int = field(default=3, ge=1)
    """Maximum number of rollbacks to the same checkpoint; one more ends the run."""


class Spike(Config, role=RUNTIME):
    """Loss spikes: steps whose loss is far above the median of those before."""

    window: int = field(default=50, ge=2, le=10_000)
    """Number of previous losses that a loss is compared with; no step counts as a spike until there
    are that many. Losses of skipped steps do not count."""

    factor: float = field(default=1.2, ge=1, lt=inf)
    """Threshold as a multiple of the median loss; 1: only `deviations` applies."""

    deviations: float = field(default=8.0, ge=0, lt=inf)
    """Threshold in standard deviations above the median loss, estimated as 1.4826 times the median
    absolute deviation; 0: only `factor` applies."""

    patience: int = field(default=1, ge=1)
    """Spikes in a row before policy takes effect; earlier ones are trained on."""

    policy: StepPolicy = field(factory=SkipStep)
    """Policy for steps whose loss is a spike."""


class Heartbeat(Config, role=RUNTIME, owner="setpoint.ops.rank_health:HeartbeatCallback"):
    """Heartbeat files: progress of each rank, in `heartbeats/rank-N.json` of the run directory."""

    every: float = field(default=60.0, gt=0, lt=inf)
    """Seconds between writes, from a thread that keeps running if the rank hangs."""


class Stragglers(Config, role=RUNTIME, owner="setpoint.ops.slow_steps:StragglersCallback"):
    """Report of stragglers: ranks that take longer than the others."""

    every: Period = Period("100 steps")
    """Report interval; a report compares means over the steps since the last one."""

    factor: float = field(default=1.3, gt=1, lt=inf)
    """Threshold of reading, forward or backward time, as a multiple of the median over ranks."""

    @rule
    def _check_every(self) -> Iterator[Problem]:
        if self.every.unit == "never":
            yield Problem("every", "use stragglers = null to disable the report")


class GpuHealthCheck(Config, role=RUNTIME, owner="setpoint.ops.rank_health:GpuHealthCallback"):
    """GPU health of each rank by NVML: temperature, throttling, memory errors, Xid errors."""

    every: Period = Period("10 min")
    """Interval; there is also one check at the start (never: only that one)."""

    max_temperature: int = field(default=90, ge=1, le=150)
    """Temperature in degrees Celsius at which to report."""


class Resilience(Config, role=RUNTIME):
    """Garbage collection and shutdown."""

    gc: GarbageCollection | None = None
    """Manual Python garbage collection (gc); null: Python's automatic collection."""


class TrainingResilience(Resilience, role=RUNTIME):
    """Garbage collection, shutdown, bad steps, hangs and health of ranks."""

    grace_period: float = field(default=120.0, gt=0, lt=inf)
    """Grace period in seconds after Ctrl-C or SIGTERM to finish the step and save a checkpoint;
    then the process exits without one, but finishes a save in progress. Keep it below the kill
    timeout of your scheduler."""

    time_limit: TimeLimit = TimeLimit("never")
    """Wall-clock limit, from the start of the process or of its launcher: before it the run saves a
    checkpoint and exits with status 75, early enough for two steps and a save. never: none."""

    deadline: Literal["auto", "never"] = "auto"
    """End of the job as given by the scheduler (SLURM_JOB_END_TIME). auto: treated like time_limit;
    never: ignored."""

    stop_file: str | None = "STOP"
    """Stop file, relative to the run directory: if it exists, the run saves a checkpoint and
    exits with status 75, and does not start again until it is removed. null: none."""

    non_finite: StepPolicy = field(factory=FailStep)
    """How to handle a non-finite loss or gradient norm. In fp16, steps that overflow are skipped in
    any case, and the loss scale falls."""

    spike: Spike | None = None
    """How to handle loss spikes; null: not at all. Decided identically on all ranks, before the
    step changes the weights."""

    bad_batches: int = field(default=4, ge=0, le=1000)
    """Number of the newest steps with a non-finite value or a loss spike whose batches are kept in
    the run directory for setpoint replay. 0: none."""

    heartbeat: Heartbeat | None = None
    """Heartbeat files, one per rank; null: none."""

    liveness_every: Period = Period("never")
    """Liveness check interval: before a step begins, all ranks answer rank 0 within
    parallel.step_timeout; those that do not are named, and the run fails. never: no checks."""

    stragglers: Stragglers | None = None
    """Straggler report: names slow ranks in the log and as an event; null: none."""

    gpu_health: GpuHealthCheck | None = None
    """GPU health: what NVML reports about the GPU of each rank, in the log and as an event; needs
    the package nvidia-ml-py. null: no checks."""

    @property
    def policies(self) -> dict[str, StepPolicy]:
        """Bad-step policies by field."""
        policies = {"resilience.non_finite": self.non_finite}
        if self.spike is not None:
            policies["resilience.spike.policy"] = self.spike.policy
        return policies

    @property
    def rollbacks(self) -> list[str]:
        """Fields with the policy rollback."""
        return [name for name, policy in self.policies.items() if isinstance(policy, RollBack)]

    @rule
    def _check_file(self) -> Iterator[Problem]:
        if self.stop_file == "":
            yield Problem("stop_file", "is empty", valid=("null", "STOP"))

    @rule
    def _check_liveness(self) -> Iterator[Problem]:
        if self.liveness_every.unit == "last_step":
            yield Problem(
                "liveness_every",
                "last_step: there is nothing to check after it",
                valid=("never", "100 steps", "10 min"),
            )
