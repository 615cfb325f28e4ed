"""The metrics of a run by path: `evaluation.held_out_loss`, `train.loss.min`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from setpoint.config import Problem, SetpointError, nearest
from setpoint.config.schema.class_info import added_sections
from setpoint.track.jsonl import read_jsonl
from setpoint.train.config import Job
from setpoint.train.evaluation.config import METRICS as METRIC

METRICS = "metrics.jsonl"
REDUCTIONS = ("last", "min", "max", "mean")
STEP = "step"
EVALUATION = "evaluation"
ALIASES = ("val", "eval", "validation")
"""Aliases of the kind `evaluation`."""
SCORES = (*METRIC, "tokens")
"""Metrics of an evaluation for each data set, held-out or by name."""
TRAINING_LOSS = "train.mean_loss"
"""Shown of training, and optimized without an evaluation: `train.loss` is of one step."""
# Columns that every row of training has.
TRAINED = ("loss", "mean_loss", "cross_entropy", "grad_norm", "lr", "tokens", "epoch", "seconds",
           "tokens_per_second", "mfu")  # fmt: skip


class MetricPath(NamedTuple):
    """One number of a run.

    Arguments:
        kind: kind of the rows; None if the column is unambiguous.
        reduction: one of `REDUCTIONS`, over the values of the column.
    """

    kind: str | None
    column: str
    reduction: str

    @classmethod
    def parse(cls, text: str) -> MetricPath:
        """Parse a path.

        Arguments:
            text: `[KIND.]COLUMN[.REDUCTION]`; by default the last value. `val.loss` is
                `evaluation.held_out_loss`.

        Raises:
            SetpointError: the text has another form.
        """
        parts = text.split(".")
        if parts[0] in ALIASES and len(parts) > 1:
            parts[0] = EVALUATION
            if parts[1] in SCORES:
                parts[1] = f"held_out_{parts[1]}"
        reduction = parts.pop() if len(parts) > 1 and parts[-1] in REDUCTIONS else "last"
        if not all(parts) or len(parts) > 2:
            raise SetpointError(
                f"{text!r} is not a metric: expected KIND.COLUMN, optionally followed by "
                f"{', '.join('.' + word for word in REDUCTIONS)}; for instance "
                f"evaluation.held_out_loss.min"
            )
        return cls(parts[0] if len(parts) == 2 else None, parts[-1], reduction)

    @property
    def name(self) -> str:
        """The path as text, without aliases."""
        reduction = "" if self.reduction == "last" else self.reduction
        return ".".join(part for part in (self.kind, self.column, reduction) if part)


class RunMetrics:
    """The rows of a run, and the problems of lines that were omitted."""

    def __init__(self, rows: Sequence[dict[str, Any]], damaged: Sequence[str] = ()) -> None:
        self.rows = rows
        self.damaged = list(damaged)

    @classmethod
    def read(cls, run: Path) -> RunMetrics:
        """Read the rows of a run directory.

        Raises:
            SetpointError: there are no rows, or they cannot be read.
        """
        path = run / METRICS
        if not path.exists():
            raise SetpointError(f"{run} has no {METRICS}")
        damaged: list[str] = []
        return cls(read_jsonl(path, damaged), damaged)

    def curve(self, path: MetricPath) -> list[tuple[float, float]]:
        """Values of a column, by step."""
        points: list[tuple[float, float]] = []
        for row in self.rows:
            if path.kind not in (None, row.get("kind")):
                continue
            step: Any = row.get(STEP)
            value: Any = row.get(path.column)
            if is_number(step) and is_number(value):
                points.append((step, value))
        return points

    def value(self, path: MetricPath) -> float | None:
        """One number, which may be infinite or NaN; None if the run has none."""
        values = [value for _, value in self.curve(path)]
        return reduced(values, path.reduction) if values else None

    def columns(self) -> list[str]:
        """The paths of all columns of numbers as `KIND.COLUMN`, in order of appearance."""
        return [name for name in self.last() if name != STEP]

    def last(self) -> dict[str, float]:
        """The last value of each column, and the step of the last row."""
        values: dict[str, float] = {}
        for row in self.rows:
            for column, value in row.items():
                if column == STEP and is_number(value):
                    values[STEP] = value
                elif is_number(value):
                    values[f"{row.get('kind')}.{column}"] = value
        return values


def measured(job: Job) -> list[str]:
    """The metrics that a job's run will have, as far as its configuration determines them.

    Returns:
        `KIND.COLUMN`, evaluation first. Training rows may have more columns, such as those of
        experts and of user-defined callbacks.
    """
    section = job.evaluation
    names = () if section is None else section.names
    scores = [f"{EVALUATION}.{name}_{metric}" for name in names for metric in SCORES]
    return [*scores, *(f"train.{column}" for column in TRAINED)]


def unmeasured(job: Job, objective: MetricPath) -> Problem | None:
    """The problem of an objective that a job does not measure; None if it may measure it."""
    known = measured(job)
    name = objective.column if objective.kind is None else f"{objective.kind}.{objective.column}"
    if name in known or (objective.kind is None and any(k.endswith(f".{name}") for k in known)):
        return None
    # Callbacks of user-defined sections may write rows; training rows may have more columns, such
    # as those of experts.
    more = objective.kind == "train" or (objective.kind is None and getattr(job.model, "moe", None))
    open_ = bool(added_sections(job)) or bool(more)
    columns = [name.partition(".")[2] for name in known]
    close = nearest(name, known, 1, likeness=0.75)
    close = close or [known[columns.index(c)] for c in nearest(objective.column, columns, 1, 0.75)]
    if open_ and not close:
        return None
    return Problem(
        "objective",
        f"{name} is not a metric of this job",
        valid=known,
        hint=f"Did you mean {close[0]}?" if close else "",
        value=name,
    )


def require(path: str, runs: Iterable[RunMetrics]) -> MetricPath:
    """Check that at least one run has a metric.

    Raises:
        SetpointError: no run has it; the error suggests the nearest names.
    """
    metric = MetricPath.parse(path)
    known: dict[str, None] = {}
    for metrics in runs:
        if metrics.value(metric) is not None:
            return metric
        known.update(dict.fromkeys(metrics.columns()))
    names = [STEP, *known]
    words = {name.rpartition(".")[2]: name for name in names}
    kind = f"{metric.kind}." if metric.kind else ""
    close = nearest(kind + metric.column, names, 1) or [
        words[word] for word in nearest(metric.column, words, 1)
    ]
    meant = f" Did you mean {close[0]}?" if close else ""
    known_metrics = f" Metrics: {', '.join(names)}" if known else " There are no metrics."
    raise SetpointError(f"no run has the metric {path!r}.{meant}{known_metrics}")


def reduced(values: Sequence[float], reduction: str) -> float:
    """Reduce a column with at least one value to one number, by one of `REDUCTIONS`."""
    if reduction == "last":
        return values[-1]
    if reduction == "mean":
        return math.fsum(values) / len(values)
    # NaN is unordered, so min and max ignore it.
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return math.nan
    return min(known) if reduction == "min" else max(known)


def is_number(value: object) -> bool:
    """True if a value in a row is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)
