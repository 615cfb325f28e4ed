"""Errors of one rank among several: said once, by the rank that they are of."""

from __future__ import annotations

import sys

from setpoint.config import SetpointError, log_of
from setpoint.parallel.rank import (
    end_after_first,
    is_said_first,
    launched,
    leave,
    own_rank,
    wait_until_said,
)


def is_said_elsewhere(error: SetpointError, traced: str = "") -> bool:
    """Report an error to the launcher, or leave it to the rank that has told this one of it.

    Arguments:
        traced: the traceback that is shown before it.

    Returns:
        whether nothing is left to be said here; of others the rank has been named.
    """
    if launched() == 1:  # a launcher with one rank left
        return leave(error.status, str(error), more={"traceback": traced, "log": log_of(error)})
    from setpoint.parallel.process_group import LostRanks
    from setpoint.parallel.rank import facts_of
    from setpoint.parallel.world import RemoteRankError

    if isinstance(error, RemoteRankError):
        wait_until_said()
        leave(error.status)
        return True
    if is_said_first(str(error)):
        leave(error.status, instead=True)
        end_after_first()
        return True
    if leave(error.status, str(error), isinstance(error, LostRanks), facts_of(error)):
        return True
    if own_rank():
        print(f"rank {own_rank()}: ", end="", file=sys.stderr)
    return False
