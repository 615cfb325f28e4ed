"""What changed between the schemas of a training job; see `setpoint.config.migrate`."""

from __future__ import annotations

from collections.abc import Iterable

from setpoint.config import RUNTIME
from setpoint.config.migrate import Added, Operation, migration


@migration(to=2)
def cautions() -> Iterable[Operation]:
    """Findings that are legal but suspicious are shown, and can be silenced by name.

    Returns:
        the changes from schema 1.
    """
    return [Added("silence", [], role=RUNTIME)]
