"""Host-side exchange between ranks in a step: counts, stops and saves, seconds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from setpoint.resilience.signals import Abandoned
from setpoint.shapes.batch import BySource, Count

if TYPE_CHECKING:
    from setpoint.parallel.replica_groups import ReplicaGroups
    from setpoint.parallel.world import World
    from setpoint.resilience.signals import StopRequest
    from setpoint.shapes.batch import StepBatch
    from setpoint.shapes.logged import MetricLog
    from setpoint.train.step_times import StepTimes


def count_over_ranks(
    step: StepBatch, world: World, groups: ReplicaGroups | None = None
) -> tuple[Count, BySource, float | None]:
    """Sum the counts of all ranks in one host collective, and in another over replica groups.

    Returns:
        counts of the step over all ranks, and by source; and the mean of the ranks' epochs, if each
        rank has its own.
    """
    if world.size == 1 and groups is None:
        return step.rank_total, step.by_source, step.epoch
    numbers = [*step.rank_total[:3], *step.by_source.sequences, *step.by_source.targets]
    numbers.append(step.epoch or 0.0)
    *sums, epochs = world.sum_numbers(*(number * world.gives_counts for number in numbers))
    epoch = None if step.epoch is None else epochs / world.data_size
    if groups is not None:
        tensor = torch.tensor(sums, dtype=torch.float64, device=world.device)
        groups.sum_counts(tensor)
        sums = tensor.tolist()
    tokens, targets, weight, *counts = sums
    integers, sources = tuple(int(count) for count in counts), len(counts) // 2
    by_source = BySource(integers[:sources], integers[sources:])
    return Count(int(tokens), int(targets), weight), by_source, epoch


class StepSync:
    """Synchronizes stops, saves and step seconds of all ranks with one collective per step.

    Time that a rank spends after its report counts towards the next step, so that the position is
    the same on all ranks.

    Arguments:
        began: start of the step, by `time.perf_counter`.
        saves_now: whether a checkpoint was requested in the last step, on any rank.
    """

    def __init__(
        self, world: World, stop: StopRequest, metrics: MetricLog, times: StepTimes
    ) -> None:
        self.world, self.stop, self.metrics, self.times = world, stop, metrics, times
        self.is_shared = world.size > 1
        self.saves_now = False
        self.began = 0.0
        # Stop flag after the last collective; None before the first.
        self._stopping: bool | None = None
        # Seconds before the step that this rank has not reported, those it has reported of the
        # step, and their mean over all ranks.
        self._unshared = self._reported = self._mean = 0.0

    @property
    def is_stopping(self) -> bool:
        """True to stop before the next step; all ranks get the same answer."""
        if not self.is_shared:
            return self.stop.requested
        if self._stopping is None:
            self._agree(self.world.any(self.stop.requested))
        return bool(self._stopping)

    def check(self) -> None:
        """Abandon repeatable work, on all ranks or on none.

        Raises:
            Abandoned: a stop was requested.
        """
        if not self.is_shared:
            self.stop.check()
            return
        self._agree(bool(self._stopping) or self.world.any(self.stop.requested))
        if self._stopping:
            raise Abandoned

    def exchange(self) -> None:
        """Exchange stop and save requests, logged metrics and seconds with the other ranks."""
        flags = [self.stop.saves_now]
        if self.is_shared:
            self._reported = time.perf_counter() - self.began + self._unshared
            flags += [self.stop.requested, bool(self.metrics)]
            with self.times("communication"):
                *sums, seconds = self.world.sum_numbers(*flags, self._reported)
            flags = [number > 0 for number in sums]
            self._mean = seconds / self.world.size
        self.saves_now, *shared = flags
        if self.saves_now:
            self.stop.answer_save()
        if shared:
            is_stopping, self.metrics.meets = shared
            self._agree(is_stopping)

    def end_step(self) -> float:
        """Seconds of the step, averaged over the ranks."""
        spent = time.perf_counter() - self.began + self._unshared
        if not self.is_shared:
            self._unshared = 0.0
            return spent
        self._unshared = spent - self._reported
        return self._mean

    def retake_step(self) -> None:
        """Count the seconds of a retaken step towards the next attempt."""
        self._unshared += time.perf_counter() - self.began

    def _agree(self, stopping: bool) -> None:
        """Record a stop request from any rank, with one reason for all ranks.

        Arguments:
            stopping: the same on all ranks.
        """
        if stopping and not self._stopping:
            requests = self.world.all_of((self.stop.signal, self.stop.reason))
            signal, reason = next((sig, why) for sig, why in requests if sig is not None)
            self.stop.agree(signal, reason)
        self._stopping = stopping
