"""What has been added up since the last row of metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


class LossMean:
    """Adds up losses, and the sequences of each source.

    A checkpoint keeps the sums, so that a resumed run writes the same rows.
    """

    def __init__(self) -> None:
        self.sum, self.steps = 0.0, 0
        self.by_source: list[int] = []

    def add(self, loss: float, by_source: Sequence[int] = ()) -> None:
        """Take one more step."""
        self.sum += loss
        self.steps += 1
        if len(self.by_source) != len(by_source):  # also where a resume accepted other sources
            self.by_source = [0] * len(by_source)
        self.by_source = [a + b for a, b in zip(self.by_source, by_source, strict=True)]

    def take(self) -> float:
        """Return the mean, NaN where no step had a finite loss, and begin anew."""
        mean = self.sum / self.steps if self.steps else math.nan
        self.sum, self.steps, self.by_source = 0.0, 0, []
        return mean

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        several = {"by_source": self.by_source} if len(self.by_source) > 1 else {}
        return {"sum": self.sum, "updates": self.steps, **several}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a sum; checkpoints of older versions have none."""
        self.sum, self.steps = float(state.get("sum", 0.0)), int(state.get("updates", 0))
        self.by_source = list(state.get("by_source", []))
