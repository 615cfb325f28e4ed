"""Liveness checks: whether all ranks answer, and which do not."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

from torch import distributed

from setpoint.parallel.watch import active_watch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from setpoint.parallel.world import World

_SILENT = re.compile(r"Ranks? ([\d, ]+) failed to pass")


class LivenessCheck:
    """Lets all ranks answer rank 0, by gloo and on the CPU, whatever computes.

    To be made and called by all ranks alike.

    Arguments:
        timeout: seconds that rank 0 waits for an answer.
    """

    def __init__(self, world: World, timeout: float) -> None:
        self.world, self.timeout = world, timeout
        self._group: ProcessGroup | None = None
        if world.size > 1:
            made = distributed.new_group(backend="gloo", group_desc="liveness")
            assert not isinstance(made, int)
            self._group = made

    def __call__(self, step: int) -> None:
        """Check once.

        Arguments:
            step: that begins, for messages.

        Raises:
            RuntimeError: some do not answer; rank 0 names them.
        """
        if self._group is None:
            return
        watch = active_watch()
        before = None if watch is None else watch.limit
        if watch is not None:
            watch.expect(self.timeout)
        try:
            distributed.monitored_barrier(
                self._group, timedelta(seconds=self.timeout), wait_all_ranks=True
            )
        except RuntimeError as error:
            silent = _SILENT.search(str(error))
            if silent is None:
                raise  # another rank names them
            ranks = silent[1].split(", ")
            raise RuntimeError(
                f"no answer from rank{'s' * (len(ranks) > 1)} {silent[1]} in the liveness check "
                f"before step {step}: timed out waiting {self.timeout:g} s"
            ) from error
        if watch is not None and before is not None:
            watch.expect(before)
