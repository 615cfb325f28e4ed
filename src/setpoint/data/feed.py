"""The batches of training, as this rank sees them: planned, made and counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from setpoint.config import SetpointError
from setpoint.data.sampler import Sampler
from setpoint.data.sequences import Sequences
from setpoint.shapes.batch import Batch, Count, StepBatch, total_count


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

    @property
    def epoch(self) -> float:
        """Passes over the data that were taken, with the fraction of the current one."""
        return self.sampler.epoch

    def take(self) -> StepBatch:
        """Make the batch of the next step of this rank, and count it."""
        batches = tuple(self._next() for _ in range(self.accumulation))
        counts = tuple(self.count(batch) for batch in batches)
        return StepBatch(batches, counts, total_count(counts), self._by_source(batches))

    def _by_source(self, batches: Sequence[Batch]) -> tuple[int, ...]:
        rows = [batch.source.numpy() for batch in batches if batch.source is not None]
        if not rows:
            return ()
        return tuple(
            np.bincount(np.concatenate(rows), minlength=len(self.sequences.sources)).tolist()
        )

    def _next(self) -> Batch:
        rows = self.sampler.take(self.micro_size * self.data_size)
        first = self.data_rank * self.micro_size
        return self.sequences.rows(rows[first : first + self.micro_size])

    def close(self) -> None:
        """Give back what making batches takes; called when a session ends, after an error, too.

        The position stays, and `take` may be called again, which takes anew what it needs.
        """
        self.sampler.forget()

    def state_dict(self) -> dict[str, Any]:
        """Where in the data what was taken ends; JSON-able, small."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], other_data: bool = False) -> None:
        """Continue where `state` was taken; see `Sampler.load_state_dict`."""
        self.sampler.load_state_dict(state, other_data)
