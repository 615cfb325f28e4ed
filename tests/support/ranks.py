"""Ranks as forked processes: what programs of several ranks have in common.

Forking one process that has imported torch, and run nothing of it, takes a third of the time that
a launcher takes.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable


def fork(one_rank: Callable[[int, str], None], world: int) -> int:
    """Run a function on ranks, each a process of its own.

    Arguments:
        one_rank: called with the rank and a path for the store that ranks meet at.
        world: how many there are.

    Returns:
        the worst of their exit statuses; what a rank raises stands on standard error.
    """
    with tempfile.TemporaryDirectory() as folder:
        children: list[int] = []
        for rank in range(world):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    one_rank(rank, f"{folder}/store")
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(status)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        # That of a rank that was killed is negative, and no better than any other.
        return max(map(abs, codes))
