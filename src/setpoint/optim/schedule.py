"""The section `schedule`: the learning-rate schedule."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, inf
from typing import Literal

from setpoint.config import (
    RUNTIME,
    Caution,
    Config,
    Invalid,
    Problem,
    dead,
    derive,
    derived,
    field,
    is_set,
    rule,
)
from setpoint.units import Duration, Length

SHORTENED_DECAY = "decay-shortened"
LONG_PHASES = "phases-longer-than-horizon"
By = Literal["step", "tokens", "epoch"]


def rounded(length: float, unit: str) -> float:
    """Remove binary rounding noise: ten times a tenth of a run is the whole run.

    Arguments:
        unit: in steps, six decimals are kept, otherwise twelve digits.
    """
    return round(length, 6) if unit == "steps" else float(f"{length:.12g}")


class ScheduleConfig(Config, owner="setpoint.optim.curves:build_schedule"):
    """Learning-rate schedule: a factor on the peak learning rate."""

    @property
    def runs_over(self) -> Duration | None:
        """Duration of the curve; None if it does not depend on one."""
        return None

    @property
    def end(self) -> Duration | None:
        """End of the curve, after which the factor is constant; None if unknown or absent."""
        return None

    @property
    def rises_over(self) -> Length:
        """Length of the linear warm-up; 0 without one."""
        return Length(0)

    @property
    def lengths(self) -> list[Length]:
        """All lengths of the schedule, such as the warm-up."""
        return [self.rises_over]

    @property
    def moved_by(self) -> By:
        """Unit of progress along the curve."""
        return "step"


class NoSchedule(ScheduleConfig, type="none"):
    """Constant peak learning rate, without warm-up."""


class Spanning(ScheduleConfig):
    """Base of schedules with lengths that may be fractions of the horizon."""

    horizon: Duration | None = derived()
    """Horizon: length that shares (percent) refer to. Default: the job's duration; null if no
    length is a share."""

    horizon_share: float | None = field(default=None, gt=0, lt=1, role=RUNTIME)
    """Horizon as a share of the job's duration, such as 0.8, instead of `horizon`; null: all of it.
    On resume only the resulting horizon is compared."""

    @derive("horizon")
    def _derive_horizon(self) -> Duration | None:
        if self.needs_horizon:
            raise Invalid("must be set: the curve, or a share of it, is defined relative to it")
        return None

    @property
    def needs_horizon(self) -> bool:
        """True if a length is a fraction of the horizon."""
        return any(length.unit == "%" for length in self.lengths)

    @property
    def runs_over(self) -> Duration | None:
        return self.horizon

    @dead("horizon")
    def _horizon_is_dead(self) -> str | None:
        return None if self.needs_horizon else "no length is given as a share of it"

    @dead("horizon_share")
    def _horizon_share_is_dead(self) -> str | None:
        return None if self.needs_horizon else "nothing of the schedule refers to a horizon"


class Warmed(Spanning):
    """Base of schedules that begin with a linear warm-up."""

    warmup: Length = Length(0)
    """Length of the linear warm-up."""

    warmup_from: float = field(default=0.0, ge=0, le=1)
    """Learning rate at the start of the warm-up, as a fraction of the peak."""

    warmup_at: Literal["end", "start"] = "end"
    """Point of a step at which the warm-up is evaluated. end: the first step is one increment above
    warmup_from, and the last has the full rate; start: the first step has warmup_from, and the
    step after the warm-up the full rate."""

    @property
    def rises_over(self) -> Length:
        return self.warmup

    @rule
    def _check_warmup(self) -> Iterator[Problem]:
        # A start factor of 1 is the full rate from the first step.
        without_effect = {
            "warmup_from": self.warmup_from not in (0, 1),
            "warmup_at": self.warmup_at != "end",
        }
        for name, is_changed in without_effect.items():
            if is_changed and not self.warmup:
                yield Problem(
                    name,
                    "has no effect: there is no warm-up",
                    also=("warmup",),
                    hint="Remove it, or give a warm-up.",
                )


class Moving(ScheduleConfig):
    """Base of schedules that are curves over the whole run."""

    by: By = "step"
    """Unit of progress. tokens: tokens without padding, divided by those of a full batch; epoch:
    steps, but constant within an epoch."""

    @property
    def moved_by(self) -> By:
        return self.by

    @rule
    def _check_by(self) -> Iterator[Problem]:
        if self.by == "step":
            return
        units = [] if self.runs_over is None else [limit.unit for limit in self.runs_over.limits]
        moving = [length.unit for length in self.lengths if length]
        if not (units or moving):
            yield Problem(
                "by",
                "has no effect: without a warm-up no length changes",
                also=("warmup",),
                hint="Remove it, or give a warm-up.",
            )
        elif self.by == "tokens" and "steps" not in (*units, *moving):
            yield Problem(
                "by",
                "has no effect: nothing of the schedule is counted in steps",
                hint="Remove it.",
            )


class Constant(Moving, Warmed, type="constant"):
    """Constant learning rate after a linear warm-up."""


class Decaying(Moving, Warmed):
    """Base of schedules that decay to a floor at a known end."""

    warmup: Length = derived()
    """Length of the linear warm-up. Default: 1/20 of the horizon; steps are rounded down."""

    horizon: Duration = derived()  # pyright: ignore[reportIncompatibleVariableOverride]
    """Horizon: end of the decay (max_steps). Default: the job's duration."""

    floor: float = field(default=0.1, ge=0, le=1)
    """Minimum learning rate as a fraction of the peak (min_lr / lr)."""

    @derive("warmup")
    def _derive_warmup(self) -> Length:
        return _part(self.horizon, 20)

    @property
    def needs_horizon(self) -> bool:
        return True

    @property
    def end(self) -> Duration | None:
        return self.horizon

    @property
    def outlasting_warmup(self) -> bool:
        """True if the warm-up is longer than the horizon, which leaves no time for decay."""
        warmup, total = _in(self.horizon, self.warmup), self.horizon.limits[0].count
        return warmup is not None and warmup > total


def _part(horizon: Duration, parts: int, least: int = 0) -> Length:
    """A part of the horizon: whole steps if the horizon has only steps, else a fraction."""
    steps = horizon.in_unit("steps") if len(horizon.limits) == 1 else None
    if steps is not None:
        return Length(max(least, int(steps) // parts))
    return Length(f"{100 // parts} %")


def _in(horizon: Duration, length: Length) -> float | None:
    """A length in the unit of a horizon; None if only the run can tell."""
    unit, total = horizon.limits[0].unit, horizon.limits[0].count
    if length.share is not None:
        return rounded(length.share * total, unit)
    comparable = len(horizon.limits) == 1 and (length.unit == unit or not length)
    return length.count if comparable else None


def _said(unit: str, count: float) -> str:
    """A count with its unit, as text that can be parsed."""
    number = ceil(count) if unit in ("steps", "tokens") or count == int(count) else count
    return f"{number} {'s' if unit == 'seconds' else unit}"


class Cosine(Decaying, type="cosine"):
    """Linear warm-up, then cosine decay to a floor, where it stays."""


class Linear(Decaying, type="linear"):
    """Linear warm-up, then linear decay to a floor, where it stays."""


class Polynomial(Decaying, type="polynomial"):
    """Linear warm-up, then polynomial decay to a floor, where it stays."""

    power: float = field(default=2.0, gt=0, lt=inf)
    """Power of the polynomial; 1 is linear."""

    hard_floor: bool = False
    """Decay towards 0 and clamp at the floor, instead of reaching the floor at the horizon."""


class Rex(Decaying, type="rex"):
    """Linear warm-up, then REX decay: (1 - t) / (1 - t / 2) at the fraction t of the decay."""


class Wsd(Decaying, type="wsd"):
    """WSD (warm-up, stable, decay; Hu et al., 2024): the peak rate until the final decay."""

    decay_length: Length = derived()
    """Decay length (cooldown) before the horizon. Default: a tenth of the horizon, at least 1
    step."""

    decay: Literal["linear", "cosine", "sqrt", "one_minus_sqrt"] = "linear"
    """Decay function of t, the completed fraction. sqrt: sqrt(1 - t), slow at first;
    one_minus_sqrt: 1 - sqrt(t), fast at first (Haegele et al., 2024)."""

    @derive("decay_length")
    def _derive_decay_length(self) -> Length:
        return _part(self.horizon, 10, least=1)

    @property
    def lengths(self) -> list[Length]:
        return [self.warmup, self.decay_length]

    @rule
    def _check_decay(self) -> Iterator[Problem]:
        if not self.decay_length:
            yield Problem("decay_length", "must be above 0", valid=("1", "10 %"))

    @rule(cautions={SHORTENED_DECAY: "the warm-up leaves less of the horizon than the decay takes"})
    def _check_room(self) -> Iterator[Caution]:
        lengths = [_in(self.horizon, length) for length in self.lengths]
        if None in lengths:
            return
        total = self.horizon.limits[0].count
        warmup, decay = (length or 0 for length in lengths)
        room = rounded(total - warmup, self.horizon.limits[0].unit)
        if decay > room > 0:
            left = _said(self.horizon.limits[0].unit, room)
            yield Caution(
                SHORTENED_DECAY,
                "decay_length",
                f"a decay of {self.decay_length} does not fit into the {left} that warmup leaves "
                f"of horizon, so it is shortened to that",
                valid=(left,),
                also=("warmup", "horizon"),
            )


class InverseSqrt(Moving, Warmed, type="inverse_sqrt"):
    """Inverse square root decay after a linear warm-up (Vaswani et al., 2017)."""

    warmup: Length = Length(1000)
    """Length of the linear warm-up."""

    timescale: Length = derived()
    """Timescale of the decay: n steps or tokens after the warm-up, the factor is sqrt(timescale /
    (timescale + n)). Default: warmup, or 10,000 steps without a warm-up."""

    floor: float = field(default=0.0, ge=0, le=1)
    """Minimum learning rate as a fraction of the peak (min_lr / lr)."""

    @derive("timescale")
    def _derive_timescale(self) -> Length:
        return self.warmup or Length(10_000)

    @property
    def needs_horizon(self) -> bool:
        # The other length is derived from the warm-up, perhaps before there is a horizon.
        lengths = [self.warmup, *([self.timescale] if is_set(self, "timescale") else [])]
        return any(length.unit == "%" for length in lengths)

    @property
    def lengths(self) -> list[Length]:
        return [self.warmup, self.timescale]

    @rule
    def _check_timescale(self) -> Iterator[Problem]:
        if not self.timescale:
            yield Problem("timescale", "must be above 0", valid=("10000",))


class SchedulePhase(Config):
    """Phase of a piecewise schedule."""

    target: float = field(ge=0, lt=inf)
    """Factor at the end of the phase, as a fraction of the peak learning rate."""

    length: Length | None = None
    """Phase length. 0: a jump; null: the rest of the horizon."""

    curve: Literal["linear", "cosine", "polynomial", "exponential"] = "linear"
    """Curve of the phase; cosine is half a period, exponential a constant ratio per step."""

    power: float = field(default=2.0, gt=0, lt=inf)
    """Power of a polynomial phase."""

    @dead("power")
    def _power_is_dead(self) -> str | None:
        return None if self.curve == "polynomial" else f"curve = {self.curve} accepts none"

    @rule
    def _check_curve(self) -> Iterator[Problem]:
        if self.length is not None and not self.length and self.curve != "linear":
            yield Problem(
                "curve", "has no effect: the phase is a jump", also=("length",), hint="Remove it."
            )


class Piecewise(Moving, Spanning, type="piecewise"):
    """Piecewise schedule: phases, each a curve from the last factor to its target."""

    start: float = field(default=0.0, ge=0, lt=inf)
    """Start factor of the first phase, as a fraction of the peak learning rate."""

    phases: tuple[SchedulePhase, ...]
    """Phases in order; after the last one the factor stays at its target."""

    horizon: Duration | None = derived()
    """Horizon: length that shares and a phase without a length refer to. Default: the job's
    duration; null if every phase has its own length."""

    @property
    def needs_horizon(self) -> bool:
        return any(phase.length is None or phase.length.unit == "%" for phase in self.phases)

    @property
    def lengths(self) -> list[Length]:
        return [phase.length for phase in self.phases if phase.length is not None]

    @property
    def end(self) -> Duration | None:
        if any(phase.length is None for phase in self.phases):
            return self.horizon
        # Without a horizon all lengths are measured in the unit of the first.
        horizon = self.horizon or Duration(_said(self.own_unit, 1))
        counts = [_in(horizon, length) for length in self.lengths]
        first, *more = horizon.limits
        total = rounded(sum(filter(None, counts)), first.unit)
        if None in counts or not total or more:
            return None
        return Duration(_said(first.unit, total))

    @property
    def own_unit(self) -> str:
        """Unit of the curve if no length is a share of a horizon."""
        return next((length.unit for length in self.lengths if length), "steps")

    @rule
    def _check_phases(self) -> Iterator[Problem]:
        if not self.phases:
            yield Problem(
                "phases",
                "there are no phases, so there is no curve",
                valid=("[{length = 100, target = 1}]",),
            )
            return
        unknown = [index for index, phase in enumerate(self.phases) if phase.length is None]
        if len(unknown) > 1:
            yield Problem(
                f"phases.{unknown[1]}",
                f"has no length, like phases.{unknown[0]}; only one phase can take the rest of "
                f"the horizon",
                hint="Give it a length.",
            )
        source = self.start
        for index, phase in enumerate(self.phases):
            if phase.curve == "exponential" and not (source and phase.target):
                zero = "target" if source else "target before" if index else "start"
                yield Problem(
                    f"phases.{index}.curve",
                    f"exponential decay can neither start nor end at 0, but the {zero} is 0",
                    valid=("linear", "cosine", "polynomial"),
                    hint="Or use a small factor instead of 0, such as 1e-8.",
                )
            source = phase.target

    @rule(cautions={LONG_PHASES: "phases of the learning rate are longer than their horizon"})
    def _check_room(self) -> Iterator[Caution]:
        if self.horizon is None or not self.needs_horizon:
            return
        # Lengths in other units only make it longer.
        known = [count for length in self.lengths if (count := _in(self.horizon, length))]
        unit, total = self.horizon.limits[0].unit, self.horizon.limits[0].count
        given = rounded(sum(known), unit)
        unknown = next((i for i, phase in enumerate(self.phases) if phase.length is None), None)
        if given > total:
            yield Caution(
                LONG_PHASES,
                "phases",
                f"together {given:g} {unit} do not fit into {total:g}: "
                f"{' + '.join(f'{length:g}' for length in known)}; the rest is never reached",
                also=("horizon",),
            )
        elif unknown is not None and given == total:
            yield Caution(
                LONG_PHASES,
                f"phases.{unknown}",
                f"the other phases leave nothing of {self.horizon} for it",
                also=("horizon",),
                hint="Remove it, or shorten the others.",
            )


class Plateau(Warmed, type="plateau", owner="setpoint.optim.curves:PlateauCurve"):
    """Reduce on plateau: lower the learning rate when a metric stops improving."""

    monitor: str = "held_out.loss"
    """Monitored metric, DATASET.METRIC, such as held_out.loss. Accuracy is maximized, others
    minimized."""

    evaluated_on: str | None = derived()
    """Evaluation interval and data for the metric, which affect the learning rate. Set by the
    training job, not by users."""

    factor: float = field(default=0.5, gt=0, lt=1)
    """Reduction factor: multiplies the learning rate when the metric has stopped improving."""

    patience: int = field(default=2, ge=0)
    """Patience: allowed evaluations without improvement; one more lowers the rate."""

    threshold: float = field(default=1e-4, ge=0, lt=1)
    """Threshold: minimum relative change to the best value that counts as an improvement."""

    cooldown: int = field(default=0, ge=0)
    """Cooldown: number of evaluations after a reduction that are not counted."""

    floor: float = field(default=0.0, ge=0, le=1)
    """Minimum learning rate as a fraction of the peak (min_lr / lr)."""

    @derive("evaluated_on")
    def _derive_evaluated_on(self) -> str | None:
        return None

    @property
    def direction(self) -> Literal["min", "max"]:
        """Direction in which the metric improves."""
        return "max" if self.monitor.endswith(".accuracy") else "min"

    @rule
    def _check_monitor(self) -> Iterator[Problem]:
        data, _, metric = self.monitor.rpartition(".")
        if not (data and metric):
            yield Problem(
                "monitor",
                "is not a metric of a data set: it must name both, with a dot between",
                valid=("held_out.loss",),
            )

    @rule
    def _check_floor(self) -> Iterator[Problem]:
        if self.floor == 1:
            yield Problem("floor", "is the full rate, so the rate would never fall", valid=("0.1",))
