"""Hooks around the training loop of a session, which callbacks have as well."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from setpoint.parallel.world import World
    from setpoint.train.config import Job


class SessionHooks:
    """Methods of callbacks that are called before and after the loop."""

    def before_open(
        self, job: Job, directory: Path | None, world: World, show: Callable[[str], None]
    ) -> None:
        """Called on all ranks before the run directory is compared with the job and opened.

        Only for callbacks that exist by then: objects passed to `train`, and operations.

        Arguments:
            directory: the run directory; None for a new one.
            show: prints a line.
        """

    def rehearsed(self, job: Job, directory: Path | None) -> tuple[str, str] | None:
        """Row of `train --dry-run` about `before_open`; nothing is written."""

    def before_build(self, run: Any, ending: ExitStack) -> None:
        """Called on all ranks once the job matches its record, before anything is built.

        For the same callbacks as `before_open`.

        Arguments:
            run: has `job`, `directory`, `world`, and `shown`, which prints lines.
            ending: closed at the end of the session, with the error that ends it.
        """

    def opened(self, run: Any, stack: ExitStack) -> None:
        """Called when the run directory is locked, before the newest checkpoint is loaded.

        Arguments:
            run: has `job`, `directory`, `events`, `progress`, `trackers`, and the `store` of
                checkpoints.
            stack: closed at the end of the session, when all is recorded.
        """

    def fetch(self, newer_than: int | None) -> bool:
        """Fetch a valid checkpoint if newer local ones are damaged; called on all ranks.

        Arguments:
            newer_than: step of the newest valid checkpoint; None without one.

        Returns:
            True if the store has a newer one now.
        """
        return False

    def summary(self) -> list[tuple[str, str]]:
        """Rows for the summary table at the end of training."""
        return []


def is_ours(callback: SessionHooks) -> bool:
    """True if a callback belongs to Setpoint, so its declared methods are all it does."""
    return type(callback).__module__.partition(".")[0] == "setpoint"
