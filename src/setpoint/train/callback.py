"""What can happen around the steps of a loop."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from setpoint.config import SetpointError

if TYPE_CHECKING:
    from setpoint.train.step.loop import Loop, StepResult


class Phase(IntEnum):
    """When a callback runs, of those that are called after the same step."""

    STEP = 0
    """Belongs to the step itself, such as the end of a profile."""
    OBSERVE = 1
    """Reads what the step did, and writes rows and events."""
    EVALUATE = 2
    """Evaluates the model."""
    KEEP = 3
    """Saves what the ones before have left."""
    TIDY = 4
    """Frees what is not needed any more."""
    LAST = 5
    """After everything that Setpoint does itself."""


class Callback:
    """Does nothing; subclasses override what they need.

    Callbacks of one phase run in the order in which they were added.

    Raises:
        SetpointError: a subclass has a method of an older version, which nothing would call.
    """

    phase: Phase = Phase.LAST

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "after_update" in vars(cls):
            raise SetpointError(
                f"{cls.__name__}.after_update is never called: its name is now "
                f"after_step(loop, result), with the same arguments"
            )

    def start(self, loop: Loop) -> None:
        """Called once, before the first step of this session."""

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Called after each step.

        Arguments:
            loop: `before` and `position` enclose the step; `last` if the run is over.
        """

    def finish(self, loop: Loop) -> None:
        """Called once, when the session ends without an error.

        Arguments:
            loop: `last` is False if the session was stopped from outside; `ended` says why
                training ended before its duration was over, if a callback has called `end`.
        """

    def close(self, loop: Loop) -> None:
        """Called once at the very end, after an error and Ctrl-C too, even one inside `start`.

        Arguments:
            loop: where the session ended. What `start` has changed is put back here.
        """
