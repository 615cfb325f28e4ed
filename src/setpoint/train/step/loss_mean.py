"""The mean of the losses since the last row of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class LossMean:
    """Adds up losses; a checkpoint keeps the sum, so that a resumed run writes the same mean."""

    def __init__(self) -> None:
        self.sum, self.steps = 0.0, 0

    def add(self, loss: float) -> None:
        """Take the loss of one more step."""
        self.sum += loss
        self.steps += 1

    def take(self) -> float:
        """Return the mean, and begin anew."""
        mean = self.sum / self.steps
        self.sum, self.steps = 0.0, 0
        return mean

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"sum": self.sum, "updates": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a sum; checkpoints of older versions have none."""
        self.sum, self.steps = float(state.get("sum", 0.0)), int(state.get("updates", 0))
