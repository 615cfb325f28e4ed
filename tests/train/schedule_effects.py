"""Rows of the table of effects: the fields of the schedules, seen in the rates of updates."""

from __future__ import annotations

from collections.abc import Callable

from setpoint.config.record.record import fingerprint
from setpoint.resilience.signals import StopRequest
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.loop import Callback, Loop
from setpoint.train.position import Position
from setpoint.train.run import train
from setpoint.train.verdict import StepResult

from .small import rows


class Updates(Callback):
    """Keeps the updates."""

    def __init__(self) -> None:
        self.seen: list[StepResult] = []

    def after_step(self, loop: Loop, result: StepResult) -> None:
        self.seen.append(result)


def updates(job: Job) -> list[StepResult]:
    """What the updates were."""
    callback = Updates()
    Loop(job, build_components(job), [callback], StopRequest(), Position()).run()
    return callback.seen


def rates(job: Job) -> list[float]:
    """The learning rates."""
    return [result.lr for result in updates(job)]


def logged(job: Job) -> list[float]:
    """The learning rates of a whole run, which evaluations may move."""
    return [row["lr"] for row in rows(train(job).directory) if row["kind"] == "train"]


SHARED = {
    "warmup": "schedule.warmup=2",
    "warmup_from": "schedule.warmup_from=0.5",
    "horizon": "schedule.horizon=100",
    "floor": "schedule.floor=0.9",
    "by": "schedule.by=epoch",
}
WARM = ("schedule.warmup=3",)
PHASES = (
    "schedule.type=piecewise",
    "schedule.phases="
    "[{target: 1, length: 50%}, {target: 0.2, length: 1}, {target: 0.1, length: 1}]",
)
POLYNOMIAL = (
    "schedule.type=piecewise",
    "schedule.phases=[{target: 1, length: 4, curve: polynomial}]",
)
# With a threshold near 1 nothing is a gain, and each evaluation lowers the rate.
PLATEAU = (
    "schedule=plateau", "schedule.patience=0", "schedule.threshold=0.9", "evaluation.every=1 steps",
    "schedule.warmup=1", "duration=6 steps",
)  # fmt: skip

# By the name of a field: the change, where it is seen, and what is set on both sides.
ROWS: dict[str, tuple[str, Callable[[Job], object], tuple[str, ...]]] = {}
for name in (
    "Cosine.warmup", "Cosine.warmup_from", "Cosine.horizon", "Cosine.floor",
    "Cosine.by", "Linear.warmup", "Linear.warmup_from", "Linear.horizon",
    "Linear.floor", "Linear.by", "Polynomial.warmup", "Polynomial.warmup_from",
    "Polynomial.horizon", "Polynomial.floor", "Polynomial.by", "Rex.warmup",
    "Rex.warmup_from", "Rex.horizon", "Rex.floor", "Rex.by", "Wsd.horizon",
    "Wsd.floor", "Wsd.by",
):  # fmt: skip
    cls, _, field = name.partition(".")
    late = ("schedule.decay_length=3",) if cls == "Wsd" else ()
    warm = WARM if field == "warmup_from" else ()
    ROWS[name] = (SHARED[field], rates, (f"schedule={cls.lower()}", *late, *warm))
for name in ("Constant", "InverseSqrt", "Plateau"):
    tag = {"InverseSqrt": "inverse_sqrt"}.get(name, name.lower())
    share = ("schedule.warmup=40 %", f"schedule={tag}", "evaluation.every=1 steps")
    see = logged if name == "Plateau" else rates
    ROWS[f"{name}.horizon"] = ("schedule.horizon=12", see, share)
    ROWS[f"{name}.horizon_share"] = ("schedule.horizon_share=0.5", see, share)
for name in ("Cosine", "Linear", "Polynomial", "Rex", "Wsd"):
    ROWS[f"{name}.horizon_share"] = (
        "schedule.horizon_share=0.5",
        rates,
        (f"schedule={name.lower()}",),
    )
WSD = ("schedule=wsd", "schedule.decay_length=3")
ROWS |= {
    "Constant.warmup": (SHARED["warmup"], rates, ("schedule=constant",)),
    "Constant.warmup_from": (SHARED["warmup_from"], rates, ("schedule=constant", *WARM)),
    "Constant.by": (SHARED["by"], rates, ("schedule=constant", *WARM)),
    "Polynomial.power": ("schedule.power=1", rates, ("schedule=polynomial",)),
    "Polynomial.hard_floor": ("schedule.hard_floor=true", rates, ("schedule=polynomial",)),
    "Wsd.decay_length": ("schedule.decay_length=3", rates, ("schedule=wsd",)),
    "Wsd.decay": ("schedule.decay=sqrt", rates, WSD),
    "Wsd.warmup": (SHARED["warmup"], rates, (*WSD, "duration=6 steps")),
    "Wsd.warmup_from": (
        SHARED["warmup_from"], rates, (*WSD, "duration=6 steps", "schedule.warmup=2")
    ),
    "InverseSqrt.warmup": (SHARED["warmup"], rates, ("schedule=inverse_sqrt",)),
    "InverseSqrt.warmup_from": (SHARED["warmup_from"], rates, ("schedule=inverse_sqrt",)),
    "InverseSqrt.by": (SHARED["by"], rates, ("schedule=inverse_sqrt",)),
    "InverseSqrt.timescale": (
        "schedule.timescale=3", rates, ("schedule=inverse_sqrt", "schedule.warmup=1")
    ),
    "InverseSqrt.floor": (
        SHARED["floor"], rates, ("schedule=inverse_sqrt", "schedule.warmup=1")
    ),
    "Piecewise.start": ("schedule.start=0.5", rates, PHASES),
    "Piecewise.phases": ("schedule.phases=[{target: 1, length: 100 %}]", rates, PHASES),
    "Piecewise.horizon": ("schedule.horizon=6", rates, PHASES),
    "Piecewise.horizon_share": ("schedule.horizon_share=0.5", rates, PHASES),
    "Piecewise.by": (SHARED["by"], rates, PHASES),
    "SchedulePhase.target": ("schedule.phases.1.target=0.9", rates, PHASES),
    "SchedulePhase.length": ("schedule.phases.0={target: 1, length: 25 %}", rates, PHASES),
    "SchedulePhase.curve": ("schedule.phases.0.curve=cosine", rates, POLYNOMIAL),
    "SchedulePhase.power": ("schedule.phases.0.power=3", rates, POLYNOMIAL),
    "Plateau.warmup": (SHARED["warmup"], logged, PLATEAU),
    "Plateau.warmup_from": (
        SHARED["warmup_from"], logged, (*PLATEAU, "schedule.warmup=3")
    ),
    # What gets better by the other measure: perplexity falls faster than its logarithm.
    "Plateau.monitor": (
        "schedule.monitor=held_out.perplexity", logged, (*PLATEAU, "schedule.threshold=0.2")
    ),
    "Plateau.evaluated_on": ("evaluation.sequences=2", fingerprint, PLATEAU),
    "Plateau.factor": ("schedule.factor=0.7", logged, PLATEAU),
    "Plateau.patience": ("schedule.patience=1", logged, PLATEAU),
    "Plateau.threshold": ("schedule.threshold=0", logged, PLATEAU),
    "Plateau.cooldown": ("schedule.cooldown=1", logged, PLATEAU),
    "Plateau.floor": ("schedule.floor=0.4", logged, PLATEAU),
}  # fmt: skip
