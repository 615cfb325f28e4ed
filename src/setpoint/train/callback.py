"""What can happen around the updates of a loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from setpoint.train.step.loop import Loop, Update


class Callback:
    """Does nothing; subclasses override what they need."""

    def start(self, loop: Loop) -> None:
        """Called once, before the first update of this session."""

    def after_update(self, loop: Loop, update: Update) -> None:
        """Called after each update.

        Arguments:
            loop: `before` and `position` enclose the update; `last` if the run is over.
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
