"""The batches of training: steps in an order that is a function of the seed, resumed exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from setpoint.config import SetpointError
from setpoint.data.order import FEISTEL, Order
from setpoint.data.sequences import Sequences
from setpoint.shapes.batch import Batch, Count, StepBatch, total_count


class Feed:
    """An endless stream of sequences, every one once per epoch, in a new order each epoch.

    Sequences of all epochs form one stream; a micro-batch of all ranks takes the next
    `micro_size * data_size` of them, each rank its own slice, and may cross from one epoch into the
    next, so nothing is dropped. The position in that stream is the whole state: it is the same on
    all ranks, and may be loaded with another number of ranks or micro-batch size.

    Arguments:
        count: counts what of a micro-batch the loss is divided by.
        accumulation: micro-batches of a step.
        data_rank, data_size: of this process among those that read different data.

    Raises:
        SetpointError: a number is out of range.
    """

    def __init__(
        self,
        sequences: Sequences,
        count: Callable[[Batch], Count],
        *,
        seed: int,
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
        self.count = count
        self.micro_size = micro_size
        self.accumulation = accumulation
        self.data_rank = data_rank
        self.data_size = data_size
        self.order = Order(seed, len(sequences))
        self._position = 0

    @property
    def position(self) -> int:
        """Sequences that all ranks together have taken, over all epochs."""
        return self._position

    @property
    def epoch(self) -> float:
        """Passes over the sequences that were taken, with the fraction of the current one."""
        return self._position / self.order.size

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
        first = self._position + self.data_rank * self.micro_size
        batch = self.sequences.rows(self.order.at(np.arange(first, first + self.micro_size)))
        self._position += self.micro_size * self.data_size
        return batch

    def close(self) -> None:
        """Give back what making batches takes; called when a session ends, after an error, too.

        The position stays, and `take` may be called again, which takes anew what it needs.
        """
        self.order.forget()

    def state_dict(self) -> dict[str, Any]:
        """The position of what was taken and what it is one in; JSON-able, of constant size.

        Returns:
            `epoch` (whole passes) and `index` (sequences into the current one) over all ranks;
            `sequence_length`, `seed`, `tokens` and `digest` to recognise the stream; `order` is
            that of its epoch.
        """
        epoch, index = divmod(self._position, self.order.size)
        name = self.order.name(epoch)
        order = {} if name is None else {"order": name}
        return {"epoch": epoch, "index": index, **order, **self._stream()}

    def load_state_dict(self, state: Mapping[str, Any], other_data: bool = False) -> None:
        """Continue where `state` was taken; the next batch is the one that would have come then.

        Arguments:
            state: from `state_dict`, perhaps through JSON.
            other_data: whether the text may be another one: the position is then the same number
                of sequences into the same pass over it, or the start of the next one.

        Raises:
            SetpointError: the state belongs to another text, sequence length or seed, or is not a
                state of the data. The feed is then unchanged.
        """
        stream = self._stream()
        expected = {"epoch", "index", "order", *stream}
        # States of before orders had names have none.
        if {"order", *state} != expected or state.get("order", FEISTEL) != FEISTEL:
            raise SetpointError(
                f"data loader state: has the keys {sorted(state)}.\n"
                f"Valid: {sorted(expected)}, as written into checkpoints."
            )
        for key, (field, what) in _FIELDS.items():
            mine, theirs = stream[key], state[key]
            if mine != theirs and not (other_data and key in ("tokens", "digest")):
                raise SetpointError(
                    f"{field}: the data position was recorded with {what} {theirs}, and now it is "
                    f"{mine}, so it does not point at the same windows.\n"
                    f"Valid: {what} {theirs}, or a new run."
                )
        epoch, index = state["epoch"], state["index"]
        size = self.order.size
        if other_data and isinstance(index, int) and index >= size:
            epoch, index = epoch + 1, 0
        whole = all(isinstance(n, int) and not isinstance(n, bool) for n in (epoch, index))
        if not whole or epoch < 0 or not 0 <= index < size:
            raise SetpointError(
                f"data loader state: epoch {epoch!r}, index {index!r} is not a position.\n"
                f"Valid: epoch 0 or more, index 0 to {size - 1}."
            )
        self._position = epoch * size + index
        self.order = Order(self.order.seed, size, None if "order" in state else epoch)

    def _stream(self) -> dict[str, Any]:
        identity = self.sequences.identity
        return {
            "sequence_length": self.sequences.sequence_length,
            "seed": self.order.seed,
            "tokens": identity.tokens,
            "digest": identity.digest,
        }


# What a state is recognised by -> (the field to blame, how to call it)
_FIELDS = {
    "sequence_length": ("batch.sequence_length", "sequence length"),
    "seed": ("seed", "seed"),
    "tokens": ("data.sources", "a corpus of tokens"),
    "digest": ("data.sources", "corpus digest"),
}
