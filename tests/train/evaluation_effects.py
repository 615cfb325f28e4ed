"""Rows of the table of effects: the fields of evaluations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from setpoint.checkpoint.manifest import read_manifest
from setpoint.train.config import Job
from setpoint.train.run import train

from .small import rows


def judged(job: Job) -> list[dict[str, Any]]:
    """The rows of evaluations."""
    return [row for row in rows(train(job).directory) if row["kind"] == "evaluation"]


def keys(job: Job) -> set[str]:
    """What they hold."""
    return {key for row in judged(job) for key in row}


def steps(job: Job) -> list[int]:
    """Where they were made."""
    return [row["step"] for row in judged(job)]


def ended(job: Job) -> tuple[int, bool]:
    """How far a run came, and whether it ended early."""
    outcome = train(job)
    return outcome.final_position.step, outcome.reason is not None


def chosen(job: Job) -> tuple[str, float | None]:
    """The best checkpoint, and the value that selected it."""
    folder = train(job).directory / "checkpoints"
    best = (folder / "best").read_text().strip()
    return best, read_manifest(folder / best).metric


See = Callable[[Job], Any]
SOURCE = "{type=random, documents=9, length=90, alphabet=8, seed=3}"
WEB = (f"evaluation.datasets=[{{name=web, sources=[{SOURCE}]}}]",)
EVERY = ("evaluation.every=1 steps", "checkpoint.every=1 steps", "schedule=constant")
# Nothing is learned at such a rate, so that no evaluation is better than the first.
STILL = ("evaluation.every=1 steps", "optimizer.lr=1e-30", "schedule=constant", "duration=8 steps")
STOP = (*STILL, "evaluation.early_stopping.patience=2")
# What is learned here is a gain at each step, and a small one.
LEARNS = (*EVERY, "evaluation.early_stopping.patience=1", "optimizer.lr=1e-3", "duration=8 steps")
ACCURACY = ("evaluation.accuracy=true",)
BEST = "evaluation.best"

ROWS: dict[str, tuple[str, See, tuple[str, ...], Any]] = {
    "Evaluation.datasets": (WEB[0], keys, (), None),
    "Evaluation.before_training": ("evaluation.before_training=true", steps, (), [0, 3, 4]),
    "Evaluation.accuracy": (ACCURACY[0], keys, (), None),
    "Evaluation.best": ("evaluation.best={metric=perplexity}", chosen, EVERY, None),
    "Evaluation.early_stopping": (
        "evaluation.early_stopping={patience=2}",
        ended,
        STILL,
        (3, True),
    ),
    "EvaluationData.name": ("evaluation.datasets.0.name=mine", keys, WEB, None),
    "EvaluationData.sources": ("evaluation.datasets.0.sources.0.seed=4", judged, WEB, None),
    "EvaluationData.sequences": ("evaluation.datasets.0.sequences=2", judged, WEB, None),
    "Best.data": (f"{BEST}.data=web", chosen, (*WEB, *EVERY), None),
    "Best.metric": (f"{BEST}.metric=accuracy", chosen, (*ACCURACY, *EVERY), None),
    "Best.direction": (f"{BEST}.direction=max", chosen, EVERY, None),
    "EarlyStopping.patience": ("evaluation.early_stopping.patience=3", ended, STOP, (4, True)),
    "EarlyStopping.min_delta": (
        "evaluation.early_stopping.min_delta=1",
        ended,
        LEARNS,
        (2, True),
    ),
}
