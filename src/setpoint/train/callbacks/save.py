"""Saves checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from setpoint.config import record_files
from setpoint.train.callback import Callback
from setpoint.train.callbacks.log import STATE as LOG
from setpoint.train.evaluation.best_metric import STATE
from setpoint.train.record.state import WEIGHTS_ONLY, capture
from setpoint.train.step.averaging import evaluation_point
from setpoint.train.step.position import is_due, is_over

if TYPE_CHECKING:
    from setpoint.checkpoint.store import CheckpointStore
    from setpoint.track.events import EventLog
    from setpoint.track.jsonl import JsonlWriter
    from setpoint.train.callbacks.evaluate import EvaluateCallback
    from setpoint.train.callbacks.log import LogCallback
    from setpoint.train.step.loop import Loop, StepResult


class SaveCallback(Callback):
    """Saves every so often, after the last update, and when the run is asked to stop.

    Runs after logging and evaluation, so that the metrics of a step are on disk before the
    checkpoint that says how many of them belong to it.

    Arguments:
        metrics: the metrics file, if the run has one; its length becomes part of the checkpoint.
        evaluation: knows the metric of the present step, and what evaluations have come to.
        log: knows the losses since the last row.
        metrics_offset: the length that checkpoints name while nothing is logged: where the rows
            ended that an earlier session logged.
    """

    def __init__(
        self,
        store: CheckpointStore,
        metrics: JsonlWriter | None,
        events: EventLog,
        evaluation: EvaluateCallback,
        log: LogCallback,
        metrics_offset: int = 0,
    ) -> None:
        self.store = store
        self.metrics = metrics
        self.events = events
        self.evaluation = evaluation
        self.log = log
        self.metrics_offset = metrics_offset
        self.saved: tuple[int, int, float | None] | None = None
        self.record: dict[str, str | bytes] = {}

    def start(self, loop: Loop) -> None:
        """Save the initial state of a new run on wish, and what was made up for."""
        self.saved = self.progress_of(loop)
        # Weights mean something only with the configuration they were trained with, so that each
        # checkpoint has its own copy: it says what held when it was saved, wherever it is taken.
        self.record = {**record_files(loop.job), **loop.parts.companions}
        if (loop.position.step == 0 and loop.job.checkpoint.at_start) or self.evaluation.made_up:
            self.save(loop)

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Save if it is due."""
        section = loop.job.checkpoint
        due = is_due(section.every, loop.before, loop.position, loop.last)
        if due and (section.last == "full" or not loop.last):
            self.save(loop)

    def finish(self, loop: Loop) -> None:
        """Save what has not been saved yet, be it a row or a score of the last step."""
        if self.saved == self.progress_of(loop):
            return
        over = loop.ended is not None or is_over(loop.job.duration, loop.position)
        finished = over and self.evaluation.best.due is None
        last = loop.job.checkpoint.last if finished else "full"
        if last != "none":
            self.save(loop, weights_only=last == "weights")
        loop.stop.busy = False

    def progress_of(self, loop: Loop) -> tuple[int, int, float | None]:
        """What a checkpoint would hold now that the last one may lack."""
        offset = self.metrics.offset if self.metrics else self.metrics_offset
        return loop.position.step, offset, self.evaluation.metric_at(loop)

    def save(self, loop: Loop, weights_only: bool = False) -> None:
        """Save the present state."""
        loop.stop.saving = True
        with evaluation_point(loop.parts) as training:
            tensors, state = capture(loop.parts, loop.position, training)
            state["metrics_offset"] = self.metrics.sync() if self.metrics else self.metrics_offset
            state[STATE] = self.evaluation.best.to_state()
            state[LOG] = self.log.to_state()
            if weights_only:
                tensors, state[WEIGHTS_ONLY] = {"model": tensors["model"]}, True
            metric = self.evaluation.metric_at(loop)
            path = self.store.save(loop.position.step, tensors, state, metric, self.record)
        self.saved = self.progress_of(loop)
        part = {"part": "weights"} if weights_only else {}
        self.events.write("save", step=loop.position.step, checkpoint=path.name, **part)
        loop.stop.saving = loop.stop.busy = False
