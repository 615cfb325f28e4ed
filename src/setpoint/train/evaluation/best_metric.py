"""What the evaluations of a run have come to: the best so far, and how long ago that was."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from setpoint.train.evaluation.config import HELD_OUT

if TYPE_CHECKING:
    from setpoint.train.build.components import Components
    from setpoint.train.config import Job
    from setpoint.train.evaluation.config import Evaluation
    from setpoint.train.evaluation.evaluate import Scores

STATE = "evaluation"  # its name in the state of checkpoints
KEYS = ("measure", "step", "best", "lowest", "evals_without_gain", "due")
"""The attributes that the state holds."""


@dataclass(slots=True)
class BestMetric:
    """Follows the metric that selects the best; one that is to rise is negated.

    Arguments:
        measure: what the metric is and what it is measured on; two values of one measure compare.
        step: of the last evaluation; -1 before the first.
        best: the lowest value that was a gain; None before the first.
        lowest: the lowest of all, by which the best checkpoint is chosen.
        due: an evaluation at the present step that a stop cut short: whether it counts for
            patience and plateaus; None where there is none.
        changed: in what the measure differs from that of the checkpoint.
    """

    measure: dict[str, Any] = field(default_factory=dict)
    step: int = -1
    best: float | None = None
    evals_without_gain: int = 0
    due: bool | None = None
    changed: list[str] = field(default_factory=list)
    lowest: float | None = None

    def observe(self, value: float, least_gain: float = 0.0) -> None:
        """Take the value of one more evaluation.

        Arguments:
            value: lower is better; NaN is never a gain.
        """
        if not math.isnan(value) and (self.lowest is None or value < self.lowest):
            self.lowest = value
        first = self.best is None and not math.isnan(value)
        if first or (self.best is not None and value < self.best - least_gain):
            self.best, self.evals_without_gain = value, 0
        else:
            self.evals_without_gain += 1

    def stop_reason(self, section: Evaluation | None) -> str | None:
        """Say why training ends early: the metric has stopped getting better.

        Returns:
            why training ends; None if it does not.
        """
        stopping = section.early_stopping if section is not None else None
        if section is None or stopping is None or self.evals_without_gain < stopping.patience:
            return None
        best, by = section.best, f" by more than {stopping.least_gain:g}"
        text = (
            f"{best.metric.replace('_', ' ')} on {best.data} has not got better"
            f"{by * (stopping.least_gain > 0)} in {self.evals_without_gain} evaluations"
        )
        lowest = self.best if self.lowest is None else self.lowest
        if lowest is None:
            return f"{text}, and was never a number"
        return f"{text}; the best was {-lowest if best.direction == 'max' else lowest:.6g}"

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {key: getattr(self, key) for key in KEYS}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint.

        Where the measure has changed, values from before do not compare: the best is sought anew.
        """
        saved = BestMetric(**state)
        self.step, self.due = saved.step, saved.due
        today, before = self.measure, saved.measure
        if today and before:
            self.changed = [key for key in today if before.get(key) != today[key]]
        # Without an evaluation all is kept for a session that evaluates again.
        if not today or (before and not self.changed):
            self.measure, self.best, self.lowest = before, saved.best, saved.lowest
            self.evals_without_gain = saved.evals_without_gain
        else:
            self.best, self.lowest, self.evals_without_gain = None, None, 0


def value_of(section: Evaluation, scores: Scores) -> float:
    """Take from an evaluation what selects the best."""
    value = scores[section.best.data].metric(section.best.metric)
    return -value if section.best.direction == "max" else value


def measure_of(job: Job, components: Components) -> dict[str, Any]:
    """Say what the metric that selects the best is, and what it is measured on.

    Arguments:
        job: the resolved configuration; its evaluation is not null.

    Returns:
        what JSON can hold; values of equal measures can be compared.
    """
    section = job.evaluation
    assert section is not None
    best = section.best
    data = components.held_out if best.data == HELD_OUT else components.eval_sets[best.data]
    assert data is not None
    return {
        "data": best.data,
        "metric": best.metric,
        "direction": best.direction,
        "sequences": section.sequences_of(best.data),
        "sequence_length": job.batch.sequence_length,
        "rows": data.layout,
        "text": data.identity.digest,
        "left_out": [*job.loss.left_out],
    }


def best_metric_of(job: Job, components: Components) -> BestMetric:
    """The metric of a run without evaluations yet."""
    return BestMetric({} if job.evaluation is None else measure_of(job, components))
