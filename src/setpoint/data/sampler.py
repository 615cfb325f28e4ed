"""Which rows come next: planned in one place, the same on all ranks, before any of them is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from setpoint.config import SetpointError
from setpoint.data.order import Order
from setpoint.data.sequences import CountedSequences, Rows


class Sampler(Protocol):
    """The endless stream of the rows of all ranks, by what `Sequences.rows` makes them of.

    It depends on the data, the seed and how many rows were taken, and on nothing else: not on how
    many ranks, workers or rows of a micro-batch there are.
    """

    @property
    def epoch(self) -> float:
        """Passes over the data that were taken, with the fraction of the current one."""
        ...

    def take(self, count: int) -> Rows:
        """The next rows, and move past them."""
        ...

    def forget(self) -> None:
        """Drop what was kept to be faster."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Where in the stream it is; JSON-able, small."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], other_data: bool = False) -> None:
        """Go on where `state` was taken.

        Arguments:
            state: from `state_dict`, perhaps through JSON.
            other_data: whether the data may be another; the place is then the nearest there is.

        Raises:
            SetpointError: the state is one of other data, or of none. Nothing is changed then.
        """
        ...


class ShuffledSampler:
    """Every sequence once per epoch, in a new order each epoch, or in that of the sources.

    Sequences of all epochs form one stream, and a batch may cross from one epoch into the next, so
    nothing is dropped. The position in that stream is the whole state.

    Arguments:
        name: of the source, where there are several streams with one seed.
        shuffle: whether the order is a random one.
    """

    def __init__(
        self, sequences: CountedSequences, seed: int, name: str = "", shuffle: bool = True
    ) -> None:
        self.sequences = sequences
        self.order = Order(seed, len(sequences), name=name, shuffle=shuffle)
        self._position = 0

    @property
    def position(self) -> int:
        """Sequences that were taken, over all epochs."""
        return self._position

    @property
    def epoch(self) -> float:
        """Passes over the sequences that were taken, with the fraction of the current one."""
        return self._position / self.order.size

    def take(self, count: int) -> npt.NDArray[np.int64]:
        """The next sequences, (count,), and move past them."""
        first = self._position
        self._position += count
        return self.order.stretch(first, count)

    def forget(self) -> None:
        """Drop the parts of the order that are kept."""
        self.order.forget()

    def state_dict(self) -> dict[str, Any]:
        """The position of what was taken and what it is one in; JSON-able, of constant size.

        Returns:
            `epoch` (whole passes) and `index` (sequences into the current one) over all ranks;
            `sequence_length`, `seed`, `tokens`, `digest` and `shuffle` to recognise the stream.
        """
        epoch, index = divmod(self._position, self.order.size)
        return {"epoch": epoch, "index": index, **self._stream()}

    def load_state_dict(self, state: Mapping[str, Any], other_data: bool = False) -> None:
        """Continue where `state` was taken; the next rows are those that would have come then.

        Arguments:
            state: from `state_dict`, perhaps through JSON.
            other_data: whether the text may be another one: the position is then the same number
                of sequences into the same pass over it, or the start of the next one.

        Raises:
            SetpointError: the state belongs to another text, sequence length or seed, or is not a
                state of the data. Nothing is changed then.
        """
        refuse_other_stream(state, self._stream(), ("epoch", "index"), other_data)
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

    def _stream(self) -> dict[str, Any]:
        identity = self.sequences.identity
        return {
            "sequence_length": self.sequences.sequence_length,
            "seed": self.order.seed,
            "tokens": identity.tokens,
            "digest": identity.digest,
            "shuffle": self.order.shuffle,
        }


def refuse_other_stream(
    state: Mapping[str, Any],
    stream: Mapping[str, Any],
    place: Sequence[str],
    other_data: bool,
) -> None:
    """Refuse a state of another stream.

    Arguments:
        stream: what the states of this one are recognised by.
        place: the keys of a state that say where in the stream it is.

    Raises:
        SetpointError: it has other keys, or is of other data unless that is wanted.
    """
    streamed, was = "block" in place, "block" in state
    if streamed != was:
        raise SetpointError(
            f"data.sources: streaming was {str(was).lower()} where the data position was recorded, "
            f"and is {str(streamed).lower()} now, so it does not point at the same rows.\n"
            f"Valid: streaming = {str(was).lower()}, or a new run."
        )
    method = state.get("method", "concatenate")
    if streamed and method != stream["method"]:
        raise SetpointError(
            f"data.packing.method: the data position was recorded with {method}, and now it is "
            f"{stream['method']}, so it does not point at the same rows.\n"
            f"Valid: {method}, or a new run."
        )
    expected = {*place, *stream}
    if set(state) != expected:
        raise SetpointError(
            f"data loader state: has the keys {sorted(state)}.\n"
            f"Valid: {sorted(expected)}, as written into checkpoints."
        )
    for key, mine in stream.items():
        if key == "shuffle":
            if (was := state[key]) != mine:
                raise SetpointError(
                    f"data.shuffle: was {str(was).lower()} where the data position was recorded, "
                    f"and is {str(mine).lower()} now, so it does not point at the same rows.\n"
                    f"Valid: {str(was).lower()}, or a new run."
                )
            continue
        field, what = _FIELDS[key]
        theirs = state[key]
        if mine != theirs and not (other_data and key in ("tokens", "digest")):
            raise SetpointError(
                f"{field}: the data position was recorded with {what} {theirs}, and now it is "
                f"{mine}, so it does not point at the same rows.\n"
                f"Valid: {what} {theirs}, or a new run."
            )


# What a state is recognised by -> (the field to blame, how to call it)
_FIELDS = {
    "sequence_length": ("batch.sequence_length", "sequence length"),
    "seed": ("seed", "seed"),
    "tokens": ("data.sources", "a corpus of tokens"),
    "digest": ("data.sources", "corpus digest"),
    "method": ("data.packing.method", "packing"),
    "group_size": ("data.packing.group_size", "groups of"),
    "bucket": ("data.packing.length_buckets", "length buckets of"),
    "too_long": ("data.packing.too_long", "too_long"),
    "shuffle_buffer": ("data.shuffle_buffer", "a shuffle buffer of"),
}
