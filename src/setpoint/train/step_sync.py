"""What ranks exchange once a step: stop and save requests, and the seconds spent."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from setpoint.resilience.signals import Abandoned

if TYPE_CHECKING:
    from setpoint.parallel.world import World
    from setpoint.resilience.signals import StopRequest
    from setpoint.shapes.logged import MetricLog
    from setpoint.train.step_times import StepTimes


class StepSync:
    """Lets the ranks of a job stop, save and count seconds alike, by one collective a step.

    What a rank does after it has reported counts for the next step, so that the position is the
    same on all ranks.

    Arguments:
        saves_now: whether a checkpoint was asked for in the last step, on any rank.
    """

    def __init__(
        self, world: World, stop: StopRequest, metrics: MetricLog, times: StepTimes
    ) -> None:
        self.world, self.stop, self.metrics, self.times = world, stop, metrics, times
        self.is_shared = world.size > 1
        self.saves_now = False
        # Stop flag after the last collective; None before the first.
        self._stopping: bool | None = None
        # By the clock: the start of the step, with what the other ranks have not heard of before
        # it; the seconds that this rank has reported of it; and the mean of those of all ranks.
        self._began = self._unshared = self._reported = self._mean = 0.0

    @property
    def is_stopping(self) -> bool:
        """Whether a stop was requested, as far as all ranks know."""
        return bool(self._stopping) if self.is_shared else self.stop.requested

    @property
    def stop_requested(self) -> bool:
        """Whether to stop before the next step; all ranks give the same answer."""
        if self.is_shared and self._stopping is None:
            self._agree(self.world.any(self.stop.requested))
        return self.is_stopping

    def check(self) -> None:
        """Leave work that can be done again, on all ranks or on none.

        Raises:
            Abandoned: if a stop was asked for.
        """
        if not self.is_shared:
            self.stop.check()
            return
        self._agree(bool(self._stopping) or self.world.any(self.stop.requested))
        if self._stopping:
            raise Abandoned

    def begin_step(self) -> float:
        """Begin to count the seconds of a step.

        Returns:
            the time by `time.perf_counter`.
        """
        now = time.perf_counter()
        self._began = now - self._unshared
        return now

    def exchange(self) -> None:
        """Tell the other ranks what this one was asked for, and hear the same of them."""
        self._reported = time.perf_counter() - self._began
        own = (self.stop.requested, self.stop.saves_now, bool(self.metrics), self._reported)
        with self.times("communication"):
            stops, saves, logs, seconds = self.world.sum_numbers(*own)
        self.saves_now, self.metrics.meets = saves > 0, logs > 0
        if self.saves_now:
            self.stop.answer_save()
        if self.is_shared:
            self._mean = seconds / self.world.size
            self._agree(stops > 0)

    def end_step(self) -> float:
        """The seconds that a step moves the position by, the mean over the ranks."""
        spent = time.perf_counter() - self._began
        if not self.is_shared:
            return spent
        self._unshared = spent - self._reported
        return self._mean

    def retake_step(self) -> None:
        """Let the seconds of a step that is taken again count for that."""
        self._unshared = time.perf_counter() - self._began

    def _agree(self, stopping: bool) -> None:
        """Note whether any rank was asked to stop, and let all of them stop for the same reason.

        Arguments:
            stopping: the same on all ranks.
        """
        if stopping and not self._stopping:
            asked = self.world.all_of((self.stop.signal, self.stop.reason))
            first = next((number, why) for number, why in asked if number is not None)
            self.stop.agree(*first)
        self._stopping = stopping
