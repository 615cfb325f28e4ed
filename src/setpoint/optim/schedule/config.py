"""The section `schedule`: how the learning rate changes over the updates."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Literal

from setpoint.config import Config, Invalid, Problem, check, dead, derive, derived, field

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
HORIZON = (
    "lr_decay_iters",
    "lr_decay_steps",
    "num_training_steps",
    "t_max",
)
FLOOR = ("min_lr", "lr_min", "min_lr_ratio", "min_lr_rate", "eta_min", "alpha_f")
By = Literal["step", "tokens", "epoch"]


class ScheduleConfig(Config):
    """What all schedules share: a factor on the peak learning rate."""

    @property
    def end(self) -> float | None:
        """The update, counted from 0, from which on the factor stays; None where it never does."""
        return None

    @property
    def horizon(self) -> int | None:
        """How many updates the curve is drawn over; None where that is no matter to it."""
        return None

    @property
    def warmup(self) -> int:
        """Updates of the linear warm-up; 0 where there is none."""
        return 0

    @property
    def moved_by(self) -> By:
        """What moves along the curve."""
        return "step"


class NoSchedule(ScheduleConfig, type="none", owner="setpoint.optim.schedule.build:build_none"):
    """The peak learning rate at each update, without a warm-up."""


class Warmed(ScheduleConfig):
    """What schedules share that begin with a linear warm-up."""

    warmup_steps: int = field(default=0, ge=0, also_called=WARMUP)
    """Updates over which the factor rises linearly; the last of them has the full rate."""

    warmup_from: float = field(
        default=0.0, ge=0, le=1, before=0.0, also_called=("lr_start", "warmup_start_factor")
    )
    """The factor that the warm-up rises from; the first update is a step above it."""

    @property
    def warmup(self) -> int:
        """See `ScheduleConfig.warmup`."""
        return self.warmup_steps

    @check
    def _check_warmup_from(self) -> Iterator[Problem]:
        if self.warmup_from and not self.warmup_steps:
            yield Problem(
                "warmup_from",
                "has no effect: there is no warm-up",
                also=("warmup_steps",),
                hint="Remove it, or give a warm-up.",
            )


class Moving(ScheduleConfig):
    """What schedules share that are curves over the whole run."""

    by: By = field(default="step", before="step", also_called=("interval",))
    """What moves along the curve: each update; the tokens trained on, in full batches, so that
    an update of few moves it little; or each epoch, so that the factor is constant within one."""

    @property
    def moved_by(self) -> By:
        """See `ScheduleConfig.moved_by`."""
        return self.by


class Constant(
    Moving, Warmed, type="constant", owner="setpoint.optim.schedule.build:build_constant"
):
    """A constant learning rate after a linear warm-up."""

    @check
    def _check_by(self) -> Iterator[Problem]:
        if self.by != "step" and not self.warmup_steps:
            yield Problem(
                "by",
                "has no effect: without a warm-up nothing moves",
                also=("warmup_steps",),
                hint="Remove it, or give a warm-up.",
            )


class Decaying(Moving, Warmed):
    """What schedules share that come down to a floor at a known update."""

    warmup_steps: int = derived(ge=0, also_called=WARMUP)
    """Updates over which the factor rises linearly; the last of them has the full rate. Unless
    given a twentieth of horizon_steps, rounded down."""

    horizon_steps: int = derived(ge=1, also_called=HORIZON)
    """Update, counted from 0, at which the floor is reached. Set by the training job to the
    number of its updates unless given."""

    floor: float = field(default=0.1, ge=0, le=1, also_called=FLOOR)
    """The lowest factor, as a fraction of the peak."""

    @derive("warmup_steps")
    def _derive_warmup_steps(self) -> int:
        return self.horizon_steps // 20

    @property
    def end(self) -> float | None:
        """See `ScheduleConfig.end`."""
        return self.horizon_steps

    @property
    def horizon(self) -> int | None:
        """See `ScheduleConfig.horizon`."""
        return self.horizon_steps

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


class Cosine(Decaying, type="cosine", owner="setpoint.optim.schedule.build:build_cosine"):
    """A linear warm-up, then half a cosine down to a floor, which stays."""


class Linear(Decaying, type="linear", owner="setpoint.optim.schedule.build:build_linear"):
    """A linear warm-up, then a straight line down to a floor, which stays."""


class Polynomial(
    Decaying, type="polynomial", owner="setpoint.optim.schedule.build:build_polynomial"
):
    """A linear warm-up, then a power of what is left of the run down to a floor, which stays."""

    power: float = field(default=2.0, gt=0, lt=inf, also_called=("rex_alpha", "poly_power"))
    """The power; 1 is a straight line."""

    hard_floor: bool = False
    """Come down to 0 and stay at the floor from where it is crossed, in place of ending there."""

    @check
    def _check_hard_floor(self) -> Iterator[Problem]:
        if self.hard_floor and not self.floor:
            yield Problem(
                "hard_floor",
                "has no effect: a floor of 0 is where the power ends anyway",
                also=("floor",),
                hint="Remove it.",
            )


class Rex(Decaying, type="rex", owner="setpoint.optim.schedule.build:build_rex"):
    """A linear warm-up, then (1 - t) / (1 - t / 2), t being the share that is over (REX)."""


class Wsd(Decaying, type="wsd", owner="setpoint.optim.schedule.build:build_wsd"):
    """Warm-up, stable, decay (Hu et al., 2024): the full rate until the last part of the run."""

    decay_steps: int = derived(ge=1, also_called=("wsd_decay_steps", "cooldown_steps"))
    """Updates over which the factor comes down to the floor. Unless given a tenth of
    horizon_steps, at least 1."""

    decay: Literal["linear", "cosine", "sqrt", "one_minus_sqrt"] = field(
        default="linear",
        also_called=("wsd_decay_type", "decay_type", "lr_wsd_decay_style"),
        values_also_called={"one_minus_sqrt": ("1-sqrt", "minus_sqrt")},
    )
    """Its shape, t being the share of the decay that is over; sqrt: sqrt(1 - t), slow at first;
    one_minus_sqrt: 1 - sqrt(t), fast at first (Haegele et al., 2024)."""

    @derive("decay_steps")
    def _derive_decay_steps(self) -> int:
        return max(1, self.horizon_steps // 10)

    @check
    def _check_decay(self) -> Iterator[Problem]:
        room = self.horizon_steps - self.warmup_steps
        if self.decay_steps > room >= 0:
            yield Problem(
                "decay_steps",
                f"a decay of {self.decay_steps} updates does not fit into the {room} that "
                f"warmup_steps leaves of horizon_steps",
                valid=(str(room),) if room else (),
                also=("warmup_steps", "horizon_steps"),
            )


class InverseSqrt(
    Moving, Warmed, type="inverse_sqrt", owner="setpoint.optim.schedule.build:build_inverse_sqrt"
):
    """A linear warm-up, then the inverse root of the update's number (Vaswani et al., 2017)."""

    warmup_steps: int = field(default=1000, ge=0, also_called=WARMUP)
    """Updates over which the factor rises linearly; the last of them has the full rate."""

    timescale: int = derived(ge=1)
    """Updates after the warm-up until the factor is sqrt(1 / 2): n after it, the factor is
    sqrt(timescale / (timescale + n)). Unless given warmup_steps, or 10,000 without one."""

    floor: float = field(default=0.0, ge=0, le=1, also_called=FLOOR)
    """The lowest factor, as a fraction of the peak."""

    @derive("timescale")
    def _derive_timescale(self) -> int:
        return self.warmup_steps or 10_000


class Phase(Config):
    """A part of a piecewise curve."""

    target: float = field(ge=0, lt=inf, also_called=("target_multiplier",))
    """The factor at its end."""

    steps: int | None = field(default=None, ge=0)
    """Its length in updates, 0 for a jump; null: share, or what other phases leave."""

    share: float | None = field(default=None, gt=0, le=1, also_called=("percentage",))
    """Its length as a share of horizon_steps; null: steps, or what other phases leave."""

    curve: Literal["linear", "cosine", "polynomial", "exponential"] = "linear"
    """How the factor gets to the target: in a straight line, by half a cosine, by a power of the
    share of the phase that is over, or by equal ratios."""

    power: float = field(default=2.0, gt=0, lt=inf)
    """The power of a polynomial curve."""

    @dead("power")
    def _power_is_dead(self) -> str | None:
        return None if self.curve == "polynomial" else f"curve = {self.curve} takes none"

    @check
    def _check_length(self) -> Iterator[Problem]:
        if self.steps is not None and self.share is not None:
            yield Problem(
                "share",
                "contradicts steps: a phase has one length",
                also=("steps",),
                hint="Remove one of the two.",
            )
        if self.steps == 0 and self.curve != "linear":
            yield Problem(
                "curve", "has no effect: the phase is a jump", also=("steps",), hint="Remove it."
            )


class Piecewise(Moving, type="piecewise", owner="setpoint.optim.schedule.build:build_piecewise"):
    """Phases, each with a curve from where the one before ended to a target of its own."""

    start: float = field(default=0.0, ge=0, lt=inf, also_called=("initial_multiplier",))
    """The factor that the first phase starts from."""

    phases: tuple[Phase, ...] = field()
    """The phases, in order; after the last one its target stays."""

    horizon_steps: int | None = derived(ge=1, also_called=HORIZON)
    """What shares are of, and what the phase without a length fills up, in updates. Set by the
    training job to the number of its updates unless given; null where all phases have steps."""

    @derive("horizon_steps")
    def _derive_horizon_steps(self) -> int | None:
        if self.needs_horizon:
            raise Invalid("must be set: phases are shares of it, or fill it up")
        return None

    @property
    def needs_horizon(self) -> bool:
        """Whether a phase has another length than in steps."""
        return any(phase.steps is None for phase in self.phases)

    @property
    def end(self) -> float | None:
        """See `ScheduleConfig.end`."""
        return max((end for _, end in self.spans()), default=0.0)

    @property
    def horizon(self) -> int | None:
        """See `ScheduleConfig.horizon`."""
        return self.horizon_steps

    def spans(self) -> list[tuple[float, float]]:
        """Where each phase begins and ends.

        Returns:
            pairs of updates, counted from the start of the run; not whole where a share is not.
        """
        lengths = [self._length(phase) for phase in self.phases]
        given = sum(length for length in lengths if length is not None)
        rest = max((self.horizon_steps or 0) - given, 0)
        found: list[tuple[float, float]] = []
        begin = 0.0
        for length in lengths:
            end = _rounded(begin + (rest if length is None else length))
            found.append((begin, end))
            begin = end
        return found

    def _length(self, phase: Phase) -> float | None:
        if phase.steps is not None:
            return phase.steps
        return None if phase.share is None else phase.share * (self.horizon_steps or 0)

    @check
    def _check_phases(self) -> Iterator[Problem]:
        if not self.phases:
            yield Problem("phases", "no phase, so no curve", valid=("[{steps = 100, target = 1}]",))
            return
        if self.needs_horizon:
            yield from self._misfits()
        elif self.horizon_steps is not None:
            yield Problem(
                "horizon_steps",
                "has no effect: all phases have a length in steps",
                also=("phases",),
                hint="Remove it, or give a phase a share of it.",
            )
        source = self.start
        for index, phase in enumerate(self.phases):
            if phase.curve == "exponential" and not (source and phase.target):
                zero = "target" if source else "target before" if index else "start"
                yield Problem(
                    f"phases.{index}.curve",
                    f"equal ratios lead neither from 0 nor to 0, and the {zero} is 0",
                    valid=("linear", "cosine", "polynomial"),
                    hint="Or put a small factor in place of 0, such as 1e-8.",
                )
            source = phase.target

    def _misfits(self) -> Iterator[Problem]:
        """Lengths that together are more than horizon_steps, or leave nothing for the rest."""
        lengths = [self._length(phase) for phase in self.phases]
        unknown = [index for index, length in enumerate(lengths) if length is None]
        known = [length for length in lengths if length is not None]
        if len(unknown) > 1:
            yield Problem(
                f"phases.{unknown[1]}",
                f"has neither steps nor share, like phases.{unknown[0]}; one phase can fill up "
                f"what the others leave",
                hint="Give it a length.",
            )
            return
        given, whole = _rounded(sum(known)), self.horizon_steps or 0
        if given > whole:
            yield Problem(
                "phases",
                f"together {given:g} updates do not fit into {whole}: "
                f"{' + '.join(f'{length:g}' for length in known)}",
                also=("horizon_steps",),
            )
        elif unknown and given == whole:
            yield Problem(
                f"phases.{unknown[0]}",
                f"the other phases leave nothing of {whole} updates for it",
                also=("horizon_steps",),
                hint="Remove it, or shorten the others.",
            )


def _rounded(length: float) -> float:
    """Without the noise of binary fractions: ten times a tenth of a run is the whole run."""
    return round(length, 6)


class Plateau(Warmed, type="plateau", owner="setpoint.optim.schedule.build:build_plateau"):
    """The rate falls when a metric of evaluations has stopped getting better."""

    monitor: str = field(
        default="held_out.loss",
        also_called=("lr_monitor", "plateau_metric"),
    )
    """The metric, as data set and name: held_out.loss. More is better for accuracy, less for the
    others."""

    judged_on: str | None = derived()
    """How often evaluations give the metric, and what text they look at: part of what is learned,
    as they move the rate. Set by the training job from its section evaluation, and never given."""

    factor: float = field(default=0.5, gt=0, lt=1, also_called=("gamma",))
    """What the rate is multiplied by when the metric has stopped."""

    patience: int = field(default=2, ge=0)
    """Evaluations without a gain that are waited for; the one after them lowers the rate."""

    threshold: float = field(default=1e-4, ge=0, lt=1)
    """A gain is a relative change to the best so far of more than this."""

    cooldown: int = field(default=0, ge=0)
    """Evaluations after a fall that are not counted."""

    floor: float = field(default=0.0, ge=0, le=1, also_called=FLOOR)
    """The lowest factor, as a fraction of the peak."""

    @derive("judged_on")
    def _derive_judged_on(self) -> str | None:
        return None

    @property
    def direction(self) -> Literal["min", "max"]:
        """Whether less or more of the metric is better."""
        return "max" if self.monitor.endswith(".accuracy") else "min"

    @check
    def _check_monitor(self) -> Iterator[Problem]:
        data, _, metric = self.monitor.rpartition(".")
        if not (data and metric):
            yield Problem(
                "monitor",
                "is no metric of a data set: it must name both, with a dot between",
                valid=("held_out.loss",),
            )

    @check
    def _check_floor(self) -> Iterator[Problem]:
        if self.floor == 1:
            yield Problem("floor", "is the full rate, so that it would never fall", valid=("0.1",))
