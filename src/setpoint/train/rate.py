"""The learning rate over a run: where on its curve the run is, and what evaluations lower."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from setpoint.optim.schedule.config import ScheduleConfig
from setpoint.optim.schedule.plateau import PlateauCurve
from setpoint.train.evaluation.score import Score
from setpoint.train.position import Position


class LearningRate:
    """From the position of a run to the factor on the peak learning rate of the next update.

    By steps the curve's position is the number of the update. By tokens it is how many full
    batches the tokens make that were trained on, which need not be whole. By epochs it is the
    number of the first update that began in the present epoch.

    Arguments:
        section: of the schedule, resolved.
        tokens_per_update: tokens in a full batch.
    """

    def __init__(self, section: ScheduleConfig, tokens_per_update: int) -> None:
        self.curve: Any = section.build()
        self.by = section.moved_by
        self.tokens_per_update = tokens_per_update
        # The present epoch, and the update with which it began; none before the first.
        self.epoch, self.began = -1, 0

    def factor(self, position: Position) -> float:
        """Compute the factor of the update that begins at a position.

        Arguments:
            position: not before the one of the last call.

        Returns:
            The factor.
        """
        return self.curve(self._step(position))

    def _step(self, position: Position) -> float:
        if self.by == "tokens":
            return position.tokens / self.tokens_per_update
        if self.by == "epoch":
            epoch = math.floor(position.epochs)
            if epoch != self.epoch:
                self.epoch, self.began = epoch, position.step
            return self.began
        return position.step

    def observe(self, scores: Mapping[str, Score]) -> None:
        """Take notice of an evaluation that was due; only a plateau asks for any.

        Arguments:
            scores: by data set.
        """
        if isinstance(self.curve, PlateauCurve):
            data, _, metric = self.curve.monitor.rpartition(".")
            self.curve.observe(scores[data].metric(metric))

    def state_dict(self) -> dict[str, Any]:
        """What the factors of the rest of the run depend on, beside its position.

        Returns:
            plain values; empty where there is nothing.
        """
        state: dict[str, Any] = {}
        if self.by == "epoch":
            state["epoch"] = {"number": self.epoch, "began": self.began}
        if isinstance(self.curve, PlateauCurve):
            state["plateau"] = self.curve.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken.

        Arguments:
            state: from `state_dict`, perhaps of another schedule that was given up since; what
                this one has no use for is left alone.
        """
        if self.by == "epoch" and "epoch" in state:
            self.epoch, self.began = state["epoch"]["number"], state["epoch"]["began"]
        if isinstance(self.curve, PlateauCurve) and "plateau" in state:
            self.curve.load_state_dict(state["plateau"])
