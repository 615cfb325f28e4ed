"""Rows of the table of effects: the fields of the schedules, seen in the rates of a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from setpoint.config.fingerprint import fingerprint
from setpoint.train.config import Job
from setpoint.train.run import train


def rates(job: Job) -> list[float]:
    """The learning rates of all updates of a run, as they were logged."""
    path = Path(train(job).directory) / "metrics.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [row["lr"] for row in found if row["kind"] == "train"]


SHARED = {
    "warmup_steps": "schedule.warmup_steps=2",
    "warmup_from": "schedule.warmup_from=0.5",
    "horizon_steps": "schedule.horizon_steps=100",
    "floor": "schedule.floor=0.9",
    "by": "schedule.by=epoch",
}
WARM = ("schedule.warmup_steps=3",)
PHASES = (
    "schedule.type=piecewise",
    "schedule.phases=[{target: 1, share: 0.5}, {target: 0.2, steps: 1}, {target: 0.1, steps: 1}]",
)
POLYNOMIAL = (
    "schedule.type=piecewise",
    "schedule.phases=[{target: 1, steps: 4, curve: polynomial}]",
)
# With a threshold near 1 nothing is a gain, and each evaluation lowers the rate.
PLATEAU = (
    "schedule=plateau", "schedule.patience=0", "schedule.threshold=0.9", "evaluation.every=1 steps",
    "schedule.warmup_steps=1", "duration=6 steps",
)  # fmt: skip

# By the name of a field: the change, where it is seen, and what is set on both sides.
ROWS: dict[str, tuple[str, Callable[[Job], object], tuple[str, ...]]] = {}
for name in (
    "Cosine.warmup_steps", "Cosine.warmup_from", "Cosine.horizon_steps", "Cosine.floor",
    "Cosine.by", "Linear.warmup_steps", "Linear.warmup_from", "Linear.horizon_steps",
    "Linear.floor", "Linear.by", "Polynomial.warmup_steps", "Polynomial.warmup_from",
    "Polynomial.horizon_steps", "Polynomial.floor", "Polynomial.by", "Rex.warmup_steps",
    "Rex.warmup_from", "Rex.horizon_steps", "Rex.floor", "Rex.by", "Wsd.horizon_steps",
    "Wsd.floor", "Wsd.by",
):  # fmt: skip
    cls, _, field = name.partition(".")
    late = ("schedule.decay_steps=3",) if cls == "Wsd" else ()
    warm = WARM if field == "warmup_from" else ()
    ROWS[name] = (SHARED[field], rates, (f"schedule={cls.lower()}", *late, *warm))
WSD = ("schedule=wsd", "schedule.decay_steps=3")
ROWS |= {
    "Constant.warmup_steps": (SHARED["warmup_steps"], rates, ("schedule=constant",)),
    "Constant.warmup_from": (SHARED["warmup_from"], rates, ("schedule=constant", *WARM)),
    "Constant.by": (SHARED["by"], rates, ("schedule=constant", *WARM)),
    "Polynomial.power": ("schedule.power=1", rates, ("schedule=polynomial",)),
    "Polynomial.hard_floor": ("schedule.hard_floor=true", rates, ("schedule=polynomial",)),
    "Wsd.decay_steps": ("schedule.decay_steps=3", rates, ("schedule=wsd",)),
    "Wsd.decay": ("schedule.decay=sqrt", rates, WSD),
    "Wsd.warmup_steps": (SHARED["warmup_steps"], rates, (*WSD, "duration=6 steps")),
    "Wsd.warmup_from": (
        SHARED["warmup_from"], rates, (*WSD, "duration=6 steps", "schedule.warmup_steps=2")
    ),
    "InverseSqrt.warmup_steps": (SHARED["warmup_steps"], rates, ("schedule=inverse_sqrt",)),
    "InverseSqrt.warmup_from": (SHARED["warmup_from"], rates, ("schedule=inverse_sqrt",)),
    "InverseSqrt.by": (SHARED["by"], rates, ("schedule=inverse_sqrt",)),
    "InverseSqrt.timescale": (
        "schedule.timescale=3", rates, ("schedule=inverse_sqrt", "schedule.warmup_steps=1")
    ),
    "InverseSqrt.floor": (
        SHARED["floor"], rates, ("schedule=inverse_sqrt", "schedule.warmup_steps=1")
    ),
    "Piecewise.start": ("schedule.start=0.5", rates, PHASES),
    "Piecewise.phases": ("schedule.phases=[{target: 1, share: 1}]", rates, PHASES),
    "Piecewise.horizon_steps": ("schedule.horizon_steps=6", rates, PHASES),
    "Piecewise.by": (SHARED["by"], rates, PHASES),
    "Phase.target": ("schedule.phases.1.target=0.9", rates, PHASES),
    "Phase.steps": ("schedule.phases.0={target: 1, steps: 1}", rates, PHASES),
    "Phase.share": ("schedule.phases.0.share=0.25", rates, PHASES),
    "Phase.curve": ("schedule.phases.0.curve=cosine", rates, POLYNOMIAL),
    "Phase.power": ("schedule.phases.0.power=3", rates, POLYNOMIAL),
    "Plateau.warmup_steps": (SHARED["warmup_steps"], rates, PLATEAU),
    "Plateau.warmup_from": (
        SHARED["warmup_from"], rates, (*PLATEAU, "schedule.warmup_steps=3")
    ),
    # What gets better by the other measure: perplexity falls faster than its logarithm.
    "Plateau.monitor": (
        "schedule.monitor=held_out.perplexity", rates, (*PLATEAU, "schedule.threshold=0.2")
    ),
    "Plateau.judged_on": ("evaluation.sequences=2", fingerprint, PLATEAU),
    "Plateau.factor": ("schedule.factor=0.7", rates, PLATEAU),
    "Plateau.patience": ("schedule.patience=1", rates, PLATEAU),
    "Plateau.threshold": ("schedule.threshold=0", rates, PLATEAU),
    "Plateau.cooldown": ("schedule.cooldown=1", rates, PLATEAU),
    "Plateau.floor": ("schedule.floor=0.4", rates, PLATEAU),
}  # fmt: skip
