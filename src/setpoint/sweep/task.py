"""A point on its way: what is to be done with it, and what came of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from setpoint.checkpoint.folder import list_checkpoints
from setpoint.config import SetpointError
from setpoint.report.status import FINISHED
from setpoint.sweep_space.points import ResolvedPoint, mapping_of
from setpoint.train.run_name import run_directory_of

from .metrics import Metrics
from .point_record import LOG
from .state import RunState, run_state

WAITING = "waiting"
POINTS = "points"
"""The folder of the points in the folder of a sweep."""


class Task:
    """One point of a sweep.

    Arguments:
        run: the directory of its run; None: that of a training job.
    """

    def __init__(self, point: ResolvedPoint[Any], folder: Path, run: Path | None = None) -> None:
        self.point = point
        self.name = point.name
        self.job: Any = point.config
        self.run = run or Path(run_directory_of(point.config, point.fingerprint))
        self.folder = folder / POINTS / point.name
        self.status = WAITING
        self.exit_status: int | None = None
        self.seconds: float | None = None
        self.reason = ""
        self.state = RunState(False, False, 0)
        self.metrics: dict[str, float] = {}

    @property
    def log(self) -> Path:
        """What its process prints."""
        return self.folder / LOG

    def look(self) -> None:
        """Read how far its run has come.

        Raises:
            SetpointError: if the run that is there cannot be gone on with.
        """
        self.state = run_state(self.run, self.job)
        if self.state.finished:
            self.status = FINISHED
            self.measure()

    def measure(self) -> None:
        """Read the last metrics of its run; what is damaged is named as the reason."""
        try:
            found = Metrics.read(self.run)
            self.metrics, self.reason = found.last(), "; ".join(found.damaged[:1])
        except SetpointError as error:
            self.metrics = {}
            self.reason = str(error)

    def saved_in_words(self) -> str:
        """What is left of its run where it was stopped."""
        newest = max(list_checkpoints(self.run / "checkpoints"), default=0)
        if newest:
            return f"saved at step {newest}; the same command resumes"
        return "nothing saved yet; the same command starts it again"

    def plan(self) -> str:
        """What would happen with it."""
        if self.state.finished:
            return "skip: finished"
        if self.state.step:
            return f"resume at step {self.state.step}"
        return "start again" if self.state.started else "start"

    def to_json(self) -> dict[str, Any]:
        """The point as the record of the sweep has it."""
        return {
            "name": self.name,
            "settings": dict(mapping_of(self.point.point)),
            "fingerprint": self.point.fingerprint,
            "run": str(self.run),
            "status": self.status,
            "exit_status": self.exit_status,
            "seconds": None if self.seconds is None else round(self.seconds, 3),
            "reason": self.reason,
            "log": str(self.log),
            "metrics": {key: finite(value) for key, value in self.metrics.items()},
        }


def finite(value: float) -> float | str:
    """A number as JSON can hold it.

    Returns:
        the number; NaN and the infinities as texts.
    """
    return value if math.isfinite(value) else str(value)
