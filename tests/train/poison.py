"""A loss that is not finite on some batches, for small jobs."""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any

import torch

from setpoint.shapes.batch import Batch
from setpoint.train.build.components import Components
from setpoint.train.step.objective import Share

SEQUENCES = 4  # of a step


class Poisoned:
    """The objective, with a loss that is no number on some batches of the data."""

    def __init__(self, parts: Components, bad: Container[int], value: float = math.nan) -> None:
        self.inner, self.feed, self.bad, self.value = parts.objective, parts.feed, bad, value

    def share(self, batch: Batch, *numbers: float) -> Share:
        found = self.inner.share(batch, *numbers)
        taken = round(self.feed.epoch * len(self.feed.sequences))
        if taken // SEQUENCES not in self.bad:
            return found
        factors = torch.tensor([self.value, 1.0])  # the cross-entropy alone stays as it is
        return found._replace(loss=found.loss * self.value, losses=found.losses * factors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
