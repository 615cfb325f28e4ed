"""Training batches in an order that is a function of (seed, epoch), and that resumes exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from setpoint.config import SetpointError
from setpoint.data.corpus import Corpus
from setpoint.data.mix import shuffled, sorted_order
from setpoint.data.windows import cut, require_one_window
from setpoint.shapes.batch import Batch

ORDER = "feistel"
"""The name of `shuffled` in the state of checkpoints."""

PART = 1024
"""Windows whose order is computed at once; how many an epoch has makes no difference."""


class WindowLoader:
    """An endless stream of windows, every window once per epoch, in a new order each epoch.

    The corpus is cut into windows of S + 1 tokens that do not overlap (fewer than S + 1 tokens at
    its end are left out). Windows of all epochs form one stream; a step of all ranks takes
    the next `micro_size * data_size` of them, each rank its own slice, and may cross from one
    epoch into the next, so nothing is dropped. The position in that stream is the whole state: it
    is the same on all ranks, and may be loaded with another number of ranks or micro-batch size.

    Arguments:
        data_rank, data_size: of this process among those that read different data.

    Raises:
        SetpointError: the corpus is shorter than one window, or a number is out of range.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        sequence_length: int,
        micro_size: int,
        seed: int,
        data_rank: int = 0,
        data_size: int = 1,
    ) -> None:
        for name, value in (("sequence_length", sequence_length), ("micro_size", micro_size)):
            if value < 1:
                raise SetpointError(f"batch.{name}: {value} is below 1.\nValid: 1 or more.")
        if not 0 <= data_rank < data_size:
            raise SetpointError(
                f"rank {data_rank} is not one of {data_size}.\nValid: 0 to {data_size - 1}."
            )
        require_one_window(corpus, sequence_length)
        self.corpus = corpus
        self.sequence_length = sequence_length
        self.micro_size = micro_size
        self.seed = seed
        self.data_rank = data_rank
        self.data_size = data_size
        self.windows_per_epoch = len(corpus.tokens) // (sequence_length + 1)
        self._position = 0  # windows that all ranks together have taken
        # An epoch that a run of before began in another order, and ends in it.
        self._sorted_epoch: int | None = None
        # Two: a batch which crosses into the next part needs both.
        self._order = lru_cache(maxsize=2)(self._draw_order)

    @property
    def epoch(self) -> float:
        """Passes over the windows so far, with the fraction of the current one."""
        return self._position / self.windows_per_epoch

    def __iter__(self) -> Iterator[Batch]:
        """The loader is its own, endless, iterator."""
        return self

    def __next__(self) -> Batch:
        """The next batch of this rank."""
        first = self._position + self.data_rank * self.micro_size
        windows = self._windows(np.arange(first, first + self.micro_size))
        self._position += self.micro_size * self.data_size
        return cut(self.corpus, windows * (self.sequence_length + 1), self.sequence_length)

    def state_dict(self) -> dict[str, Any]:
        """The position, and what it is a position in; JSON-able, of constant size.

        Returns:
            `epoch` (whole passes) and `index` (windows into the current one) over all ranks;
            `sequence_length`, `seed`, `tokens` and `digest` to recognise the stream; `order` is
            that of its epoch.
        """
        epoch, index = divmod(self._position, self.windows_per_epoch)
        order = {} if epoch == self._sorted_epoch else {"order": ORDER}
        return {"epoch": epoch, "index": index, **order, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any], other_data: bool = False) -> None:
        """Continue where `state` was taken; the next batch is the one that would have come then.

        Arguments:
            state: from `state_dict`, perhaps through JSON.
            other_data: whether the corpus may be another one: the position is then the same number
                of windows into the same pass over it, or the start of the next one.

        Raises:
            SetpointError: the state belongs to another corpus, sequence length or seed, or is
                not a loader's state. The loader is then unchanged.
        """
        expected = {"epoch", "index", "order", *self._identity()}
        # States of before orders had names have none.
        if {"order", *state} != expected or state.get("order", ORDER) != ORDER:
            raise SetpointError(
                f"data loader state: has the keys {sorted(state)}.\n"
                f"Valid: {sorted(expected)}, as written into checkpoints."
            )
        for key, (field, what) in _FIELDS.items():
            mine, theirs = self._identity()[key], state[key]
            if mine != theirs and not (other_data and key in ("tokens", "digest")):
                raise SetpointError(
                    f"{field}: the data position was recorded with {what} {theirs}, and now it is "
                    f"{mine}, so it does not point at the same windows.\n"
                    f"Valid: {what} {theirs}, or a new run."
                )
        epoch, index = state["epoch"], state["index"]
        if other_data and isinstance(index, int) and index >= self.windows_per_epoch:
            epoch, index = epoch + 1, 0
        whole = all(isinstance(n, int) and not isinstance(n, bool) for n in (epoch, index))
        if not whole or epoch < 0 or not 0 <= index < self.windows_per_epoch:
            raise SetpointError(
                f"data loader state: epoch {epoch!r}, index {index!r} is not a position.\n"
                f"Valid: epoch 0 or more, index 0 to {self.windows_per_epoch - 1}."
            )
        self._position = epoch * self.windows_per_epoch + index
        self._sorted_epoch = None if "order" in state else epoch
        self._order.cache_clear()

    def _identity(self) -> dict[str, Any]:
        return {
            "sequence_length": self.sequence_length,
            "seed": self.seed,
            "tokens": len(self.corpus.tokens),
            "digest": self.corpus.digest,
        }

    def _windows(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Positions in the stream -> windows of the corpus, (B,) -> (B,)."""
        epochs, indices = np.divmod(positions, self.windows_per_epoch)
        windows = np.empty_like(positions)
        parts, places = np.divmod(indices, PART)
        for epoch, part in sorted(set(zip(epochs.tolist(), parts.tolist(), strict=True))):
            here = (epochs == epoch) & (parts == part)
            windows[here] = self._order(epoch, part)[places[here]]
        return windows

    def _draw_order(self, epoch: int, part: int) -> npt.NDArray[np.int64]:
        """A part of the order of an epoch."""
        key, size = f"windows/{self.seed}/{epoch}", self.windows_per_epoch
        first, last = part * PART, min(size, (part + 1) * PART)
        if epoch == self._sorted_epoch:
            return sorted_order(key, size)[first:last]
        return shuffled(key, size, np.arange(first, last))


# What a state is recognised by -> (the field to blame, how to call it)
_FIELDS = {
    "sequence_length": ("batch.sequence_length", "sequence length"),
    "seed": ("seed", "seed"),
    "tokens": ("data.sources", "a corpus of tokens"),
    "digest": ("data.sources", "corpus digest"),
}
