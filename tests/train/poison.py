"""A loss that is not finite on some batches, for small jobs."""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any

from setpoint.shapes.batch import Batch
from setpoint.train.build.components import Components

SEQUENCES = 4  # of a step


class Poisoned:
    """The objective, with a loss that is no number on some batches of the data."""

    def __init__(self, parts: Components, bad: Container[int], value: float = math.nan) -> None:
        self.inner, self.feed, self.bad, self.value = parts.objective, parts.feed, bad, value

    def __call__(self, batch: Batch) -> Any:
        found = self.inner(batch)
        taken = round(self.feed.epoch * len(self.feed.sequences))
        if taken // SEQUENCES not in self.bad:
            return found
        return found._replace(result=found.result._replace(total=found.result.total * self.value))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
