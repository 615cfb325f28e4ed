"""The batches of training, as this rank sees them: planned, made and counted."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from setpoint.config import SetpointError
from setpoint.data.loader import Loader
from setpoint.data.sampler import Sampler
from setpoint.data.sequences import Rows, Sequences
from setpoint.shapes.batch import IGNORE_INDEX, Batch, BySource, Count, StepBatch, total_count


@dataclass(slots=True)
class Spent:
    """What the batches that were taken have cost, in seconds.

    Arguments:
        planning: until it was known which rows come next, in the main process.
        making: the rows themselves, in whichever process.
    """

    batches: int = 0
    planning: float = 0.0
    making: float = 0.0

    def since(self, before: Spent) -> Spent:
        """The difference to an earlier moment."""
        return Spent(
            self.batches - before.batches,
            self.planning - before.planning,
            self.making - before.making,
        )


class Feed:
    """An endless stream of steps.

    A micro-batch of all ranks takes the sampler's next `micro_size * data_size` rows, each rank its
    own slice. The state is that of the sampler: it is the same on all ranks, and may be loaded with
    another number of ranks or micro-batch size.

    Arguments:
        sequences: make the rows that the sampler names.
        count: counts what of a micro-batch the loss is divided by.
        accumulation: micro-batches of a step.
        data_rank, data_size: of this process among those that read different data.
        workers: processes that make rows ahead; 0: this one makes them when they are taken. The
            rest is for them: see `setpoint.data.loader.Loader`.

    Raises:
        SetpointError: a number is out of range.
    """

    def __init__(
        self,
        sequences: Sequences,
        sampler: Sampler,
        count: Callable[[Batch], Count],
        *,
        micro_size: int,
        accumulation: int = 1,
        data_rank: int = 0,
        data_size: int = 1,
        workers: int = 0,
        prefetch: int = 2,
        pin_memory: bool = False,
        timeout: float = 0.0,
    ) -> None:
        for name, value in (("micro_size", micro_size), ("accumulation", accumulation)):
            if value < 1:
                raise SetpointError(f"batch.{name}: {value} is below 1.\nValid: 1 or more.")
        if not 0 <= data_rank < data_size:
            raise SetpointError(
                f"rank {data_rank} is not one of {data_size}.\nValid: 0 to {data_size - 1}."
            )
        self.sequences = sequences
        self.sampler = sampler
        self.count = count
        self.micro_size = micro_size
        self.accumulation = accumulation
        self.data_rank = data_rank
        self.data_size = data_size
        self._all, self._within = accumulation, (data_rank, data_size)
        self.workers, self.prefetch = workers, prefetch
        self.pin_memory, self.timeout = pin_memory, timeout
        self.spent = Spent()
        self._loader: Loader | None = None
        # Of each micro-batch that is named and not taken yet: where the data is behind it.
        self._ahead: deque[tuple[dict[str, Any], float]] = deque()
        self._epoch = sampler.epoch
        self._state: dict[str, Any] | None = None
        # Why no more rows can be named.
        self._end: SetpointError | None = None

    @property
    def epoch(self) -> float:
        """Passes over the data that were taken, with the fraction of the current one."""
        return self._epoch

    def divide(self, group: int, groups: int) -> None:
        """Take a part of the micro-batches of each step from now on, and leave the rest to others.

        As many groups as divide their number have the same; groups beyond these have none, and
        count as far as the others do.

        Arguments:
            group: the number of this one among all that train together, of as many ranks.
        """
        rank, size = self._within
        taking = max(each for each in range(1, groups + 1) if self._all % each == 0)
        place = group * size + rank, taking * size
        if place != (self.data_rank, self.data_size):
            self.close()  # what was made ahead has another shape
            self.data_rank, self.data_size = place
            self.accumulation = self._all // taking

    def take(self) -> StepBatch:
        """Make the batch of the next step of this rank, and count it.

        Raises:
            RunError: a worker died or hangs, or could not make a row.
        """
        if self.data_rank >= self.data_size:
            for _ in range(self.accumulation):
                self._name()
            self._epoch = self.sampler.epoch
            return StepBatch((), (), total_count(()), self._by_source((), ()))
        batches = tuple(self._next() for _ in range(self.accumulation))
        counts = tuple(self.count(batch) for batch in batches)
        return StepBatch(batches, counts, total_count(counts), self._by_source(batches, counts))

    def _by_source(self, batches: Sequence[Batch], counts: Sequence[Count]) -> BySource:
        number = len(self.sequences.sources)
        if number == 1:
            return BySource()
        sequences, targets = np.zeros(number, np.int64), np.zeros(number, np.int64)
        for batch, count in zip(batches, counts, strict=True):
            if batch.source is None:
                return BySource()
            valid = batch.targets != IGNORE_INDEX if count.valid is None else count.valid
            source = batch.source.unsqueeze(1) if batch.sources is None else batch.sources
            sequences += np.bincount(batch.source.numpy(), minlength=number)
            targets += np.bincount(source.expand_as(valid)[valid].numpy(), minlength=number)
        return BySource(tuple(sequences.tolist()), tuple(targets.tolist()))

    def _next(self) -> Batch:
        self.spent.batches += 1
        if not self.workers:
            rows, began = self._name(), time.perf_counter()
            batch = self.sequences.rows(rows)
            self.spent.making += time.perf_counter() - began
            self._epoch = self.sampler.epoch
            return batch
        if self._loader is None:
            self._state = self.sampler.state_dict()
            self._loader = Loader(
                self.sequences,
                self._names(),
                workers=self.workers,
                prefetch=self.prefetch,
                pin_memory=self.pin_memory,
                timeout=self.timeout,
            )
        before = self._loader.making
        batch = next(self._loader, None)
        self.spent.making += self._loader.making - before
        if batch is None:
            assert self._end is not None
            raise self._end
        self._state, self._epoch = self._ahead.popleft()
        return batch

    def _name(self) -> Rows:
        """The rows of the next micro-batch of this rank."""
        began = time.perf_counter()
        rows = self.sampler.take(self.micro_size * self.data_size)
        self.spent.planning += time.perf_counter() - began
        first = self.data_rank * self.micro_size
        return rows[first : first + self.micro_size]

    def _names(self) -> Iterator[Rows]:
        while True:
            try:
                rows = self._name()
            except SetpointError as error:  # raised when what was named before has been taken
                self._end = error
                return
            self._ahead.append((self.sampler.state_dict(), self.sampler.epoch))
            yield rows

    def close(self) -> None:
        """End the workers; called when a session ends, after an error, too.

        The position stays, and `take` may be called again, which takes anew what it needs.
        """
        if self._loader is not None:
            self._loader.close()
            self._loader = None
            self._ahead.clear()
            # The sampler has named rows that nobody took.
            self.sampler.load_state_dict(self.state_dict())
        self.sampler.forget()

    def state_dict(self) -> dict[str, Any]:
        """Where in the data what was taken ends; JSON-able, small."""
        return self.sampler.state_dict() if self._state is None else self._state

    def load_state_dict(self, state: Mapping[str, Any], other_data: bool = False) -> None:
        """Continue where `state` was taken; see `Sampler.load_state_dict`."""
        self.close()
        self.sampler.load_state_dict(state, other_data)
        self._state, self._epoch = None, self.sampler.epoch
