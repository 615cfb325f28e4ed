"""Evaluation callback, with early stopping."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from setpoint.resilience.signals import Abandoned
from setpoint.track.console import now
from setpoint.train.build.job_data import trained_on
from setpoint.train.evaluation.config import HELD_OUT
from setpoint.train.evaluation.scores import evaluate, row_of, value_of
from setpoint.train.loop import Callback, Phase

if TYPE_CHECKING:
    from setpoint.train.evaluation.config import Evaluation
    from setpoint.train.loop import Loop
    from setpoint.train.session import Run
    from setpoint.train.verdict import StepResult


class EvaluateCallback(Callback):
    """Evaluates at an interval, after the last step, and before the first one if configured."""

    phase = Phase.EVALUATE

    def __init__(self, section: Evaluation, run: Run) -> None:
        self.section, self.trackers, self.state = section, run.trackers, run.evaluations
        self.progress, self.events = run.progress, run.events
        self.made_up = False

    def start(self, loop: Loop) -> None:
        """Evaluate before the first step if configured, or repeat an interrupted evaluation."""
        if self.state.due is not None:
            self.evaluate(loop, counts=self.state.due)
            self.made_up = self.state.due is None
        if loop.is_over:
            return
        eval_sets = dict(loop.components.eval_sets)
        streamed = loop.components.train_data.identity.tokens is None
        if loop.components.held_out is not None and (loop.job.data.validation or not streamed):
            eval_sets[HELD_OUT] = loop.components.held_out
        for line in trained_on(loop.components.train_data, eval_sets):
            self.progress.note(line)
        if self.section.before_training and loop.position.step == 0 and self.state.step < 0:
            self.evaluate(loop, counts=True)

    def needs_result(self, loop: Loop) -> bool:
        """True if an evaluation is due that counts for schedules or early stopping."""
        return loop.is_due(self.section.every)

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Evaluate if it is due."""
        due = self.needs_result(loop)
        if due or loop.is_over:
            # An evaluation only at the end is not counted: a longer run would not have it.
            self.evaluate(loop, counts=due)

    def rewound(self, loop: Loop) -> None:
        """Repeat an evaluation if a stop interrupted it before the checkpoint was saved."""
        if self.state.due is not None:
            self.evaluate(loop, counts=self.state.due)

    def finish(self, loop: Loop) -> None:
        """Evaluate if the loop was ended after its last step."""
        evaluated = self.state.due is not None or self.state.step == loop.position.step
        if loop.end_reason and not evaluated:
            self.evaluate(loop, counts=False)

    def close(self, loop: Loop) -> None:
        """End the worker processes."""
        if loop.components.eval_feed is not None:
            loop.components.eval_feed.close()

    def evaluate(self, loop: Loop, counts: bool) -> None:
        """Evaluate, write a row, and end the loop if patience is exhausted."""
        section, step = self.section, loop.position.step
        began = time.perf_counter()
        try:
            loop.scores = evaluate(loop.job, loop.components, loop.check, self.progress.work)
        except Abandoned:
            self.state.due = counts
            self.progress.note(
                f"step {step}: its evaluation is postponed to the next start of the run"
            )
            return
        self.state.step, self.state.due = step, None
        row = {
            "kind": "evaluation",
            "time": now(),
            "step": step,
            "tokens": loop.position.tokens,
            "evaluation_seconds": round(time.perf_counter() - began, 3),
            **row_of(loop.scores),
        }
        self.trackers.write(row)
        for name, score in loop.scores.items():
            self.progress.note(f"step {step}: {name.replace('_', '-')} {score.format_line()}")
        if not counts:
            return
        loop.components.schedule.observe(loop.scores)
        stopping = section.early_stopping
        self.state.observe(
            value_of(section, loop.scores), stopping.min_delta if stopping is not None else 0.0
        )
        reason = self.state.stop_reason(section)
        if reason is not None and not loop.is_over:
            self.events.write("early_stop", step=step, reason=reason)
            self.progress.note(f"step {step}: training ends early: {reason}")
            loop.end(reason)

    def metric_at(self, loop: Loop) -> float | None:
        """Value that selects the best checkpoint.

        Returns:
            the metric of this step, where lower is better; None if it was not evaluated.
        """
        if not loop.scores or self.state.step != loop.position.step:
            return None
        return value_of(self.section, loop.scores)
