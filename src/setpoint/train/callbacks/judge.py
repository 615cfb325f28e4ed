"""Judges the model on held-out text and remembers the best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from setpoint.train.callback import Callback
from setpoint.train.callbacks.log import Tracker
from setpoint.train.evaluate import Score, evaluate
from setpoint.train.position import is_due

if TYPE_CHECKING:
    from setpoint.track.progress import Progress
    from setpoint.train.loop import Loop, Update


class JudgeCallback(Callback):
    """Evaluates every so often and after the last update.

    Arguments:
        trackers: receive a row for each evaluation.
        progress: shows the result to people.
    """

    def __init__(self, trackers: Sequence[Tracker], progress: Progress) -> None:
        self.trackers = trackers
        self.progress = progress
        self.score: Score | None = None
        # The step that `score` belongs to; a checkpoint of the same step carries its metric.
        self.step = -1

    def after_update(self, loop: Loop, update: Update) -> None:
        """Evaluate if it is due."""
        section = loop.job.evaluation
        if section is None:
            return
        if not (loop.last or is_due(section.every, loop.before, loop.position, loop.last)):
            return
        self.score = evaluate(loop.job, loop.parts)
        self.step = loop.position.step
        row = {
            "kind": "evaluation",
            "step": loop.position.step,
            "tokens": loop.position.tokens,
            "held_out_loss": self.score.loss,
            "held_out_bits_per_byte": self.score.bits_per_byte,
            "held_out_tokens": self.score.tokens,
        }
        for tracker in self.trackers:
            tracker.write(row)
        self.progress.note(
            f"step {loop.position.step}: held-out loss {self.score.loss:.4f}, "
            f"{self.score.bits_per_byte:.4f} bits per byte"
        )

    def metric_at(self, loop: Loop) -> float | None:
        """What selects the best checkpoint.

        Arguments:
            loop: at its present position.

        Returns:
            the metric of this very step, lower is better; None if it was not evaluated.
        """
        if self.score is None or self.step != loop.position.step:
            return None
        return self.score.loss
