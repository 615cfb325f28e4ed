"""Rows as parts of documents, and their endless order, epoch after epoch and group by group.

numpy guarantees the streams of its bit generators, but not the results of methods such as
`Generator.permutation`, and a resumed run must see the same rows under a newer numpy. Random
numbers and permutations are therefore computed here, as pure functions of a key and a counter.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from setpoint.config import SetpointError

if TYPE_CHECKING:
    from setpoint.data.corpus import Corpus, Ints
    from setpoint.data.tokenizer import TokenArray

ROUNDS = 6
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def random_bits(key: str, count: int) -> npt.NDArray[np.uint64]:
    """`count` distinct random words; word i depends only on the key and i.

    Arguments:
        key: any string; different keys yield unrelated words.

    Source: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
    2014), started at the first 8 bytes of the key's SHA-256.
    """
    start = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
    words = np.arange(1, count + 1, dtype=np.uint64)
    words *= _STEP
    words += np.uint64(start)
    return _mixed(words)


def shuffled(key: str, size: int, places: Ints) -> Ints:
    """Elements of a random permutation of 0..size-1 at some positions, without computing others.

    A Feistel network over the bits of a position, with SplitMix64's finalizer as round function, is
    a bijection of 0 .. 4^h - 1 (Luby and Rackoff, 1988). Results of `size` or above are permuted
    again until they are below it (cycle walking), which gives a bijection of 0..size-1.

    Arguments:
        key: any string; different keys yield unrelated permutations.
        size: below 2^62.
        places: positions, each in 0..size-1.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    bits, mask = np.uint64(half), np.uint64(2**half - 1)
    keys = random_bits(key, ROUNDS)
    elements = places.astype(np.uint64)
    beyond = np.arange(len(elements))
    while len(beyond):
        left, right = elements[beyond] >> bits, elements[beyond] & mask
        for round_key in keys:
            left, right = right, left ^ (_mixed(right + round_key) & mask)
        elements[beyond] = left << bits | right
        beyond = beyond[elements[beyond] >= size]
    return elements.astype(np.int64)


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finalizer, in place."""
    words ^= words >> np.uint64(30)
    words *= _FIRST
    words ^= words >> np.uint64(27)
    words *= _SECOND
    words ^= words >> np.uint64(31)
    return words


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Rows as concatenations of parts of documents.

    Arguments:
        starts: (P,) offset of the first input token of each part; targets are shifted by one.
        lengths: (P,) number of input tokens.
        ends: (B,) index after the last part of each row.
        tokens: for streamed rows, the array to which `starts` refer; None: the array of the corpus.
        names: (P,) document names, for streamed rows.
    """

    starts: Ints
    lengths: Ints
    ends: Ints
    tokens: TokenArray | None = None
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, key: slice) -> Parts:
        start, stop, _ = key.indices(len(self))
        first = int(self.ends[start - 1]) if start else 0
        last = int(self.ends[stop - 1]) if stop > start else first
        ends = self.ends[start : max(stop, start)] - first
        starts, lengths = self.starts[first:last], self.lengths[first:last]
        if self.tokens is None:
            return Parts(starts, lengths, ends)
        low, high = (int(starts[0]), int(starts[-1] + lengths[-1]) + 1) if len(starts) else (0, 0)
        return Parts(starts - low, lengths, ends, self.tokens[low:high], self.names[first:last])

    @property
    def token_count(self) -> int:
        """Number of input tokens."""
        return int(self.lengths.sum())

    def pick(self, rows: Ints) -> Parts:
        """Select rows by number."""
        return Parts.joined([self[row : row + 1] for row in rows.tolist()])

    @classmethod
    def joined(cls, parts: Sequence[Parts]) -> Parts:
        """Concatenate rows."""
        if len(parts) == 1:
            return parts[0]
        none = np.empty(0, np.int64)
        before = np.cumsum([0, *(len(part.starts) for part in parts)]).tolist()
        starts = [part.starts for part in parts]
        tokens = None
        if parts and parts[0].tokens is not None:
            arrays = [part.tokens for part in parts if part.tokens is not None]
            token_offsets = np.cumsum([0, *map(len, arrays)]).tolist()
            starts = [offsets + more for offsets, more in zip(starts, token_offsets, strict=False)]
            tokens = np.concatenate(arrays)
        return cls(
            np.concatenate([none, *starts]),
            np.concatenate([none, *(part.lengths for part in parts)]),
            np.concatenate([none, *(p.ends + n for p, n in zip(parts, before, strict=False))]),
            tokens,
            tuple(name for part in parts for name in part.names),
        )


class Deal(NamedTuple):
    """Assignment of a step's rows to a rank.

    Arguments:
        step_rows: rows of a step over all ranks.
        local_rows: indices of the rank's rows within the step.
        first: number of the first row of the next step.
    """

    step_rows: int
    local_rows: Sequence[int]
    first: int = 0

    def lanes(self, count: int) -> list[int]:
        """The lanes of a stream that supply a row to this rank in any step.

        Row i of the sequence belongs to lane i modulo `count`. A run starts with as many lanes as
        rows per step; if it resumes with a different number of rows, steps begin at varying lanes.
        """
        cycle = gcd(self.step_rows, count)
        slots = {(self.first + row) % cycle for row in self.local_rows}
        return [lane for lane in range(count) if lane % cycle in slots]


class EpochPosition(NamedTuple):
    """Position of the next row.

    Arguments:
        epoch_row: number of the row in its epoch, for messages.
    """

    epoch: int = 0
    epoch_row: int = 0
    group: int = 0
    row: int = 0


class EpochCursor(ABC):
    """Position in the rows of a corpus, epoch after epoch.

    The rows of a group depend only on the epoch and the group number. All ranks plan all rows. A
    batch may cross the end of an epoch, so that no rows are dropped.

    Arguments:
        length: tokens of a row, S.
        size: rows, or documents to pack, per epoch.
        group_size: rows or documents in a group; the last group may be smaller.
        key: key of the random order.
        facts: further properties of the rows that must match when a state is loaded.
    """

    is_dealt = False
    """True if a rank only knows the positions of its own rows, so states must be merged."""

    def __init__(
        self,
        corpus: Corpus,
        length: int,
        *,
        size: int,
        group_size: int,
        key: str,
        facts: Mapping[str, Any],
    ) -> None:
        self.size, self.group_size, self.key = size, group_size, key
        self.groups = -(-size // group_size)
        self.facts: dict[str, Any] = {
            "sequence_length": length,
            "tokens": len(corpus.tokens),
            "digest": corpus.digest,
            **facts,
        }
        self.next_row = EpochPosition()
        # Two: a batch which crosses into the next group needs both.
        self.group = lru_cache(maxsize=2)(self._rows)

    @abstractmethod
    def _rows(self, epoch: int, group: int) -> Parts:
        """The rows of a group."""

    @abstractmethod
    def passed(self, epoch: int, group: int, row: int) -> int:
        """Number of rows or documents before a row of a group."""

    def places(self, group: int) -> Ints:
        """Positions of a group in an epoch's order."""
        return np.arange(group * self.group_size, min((group + 1) * self.group_size, self.size))

    @property
    def epoch(self) -> float:
        """Passes over the source, with the fraction of the current one."""
        epoch, _, group, row = self.next_row
        return (epoch * self.size + self.passed(epoch, group, row)) / self.size

    def take(self, slots: Ints, local_rows: slice) -> Parts:
        """Advance by the next rows of all ranks, and return this rank's rows.

        Arguments:
            slots: (B,) numbers of the rows in the sequence of all sources.
            local_rows: the rows of this rank.
        """
        parts, done, count = list[Parts](), 0, len(slots)
        start, stop, _ = local_rows.indices(count)
        epoch, epoch_row, group, row = self.next_row
        while done < count:
            rows = self.group(epoch, group)
            first, last = row + max(start - done, 0), min(row + stop - done, len(rows))
            if first < last:
                parts.append(rows[first:last])
            taken = min(count - done, len(rows) - row)
            done, epoch_row, row = done + taken, epoch_row + taken, row + taken
            if row == len(rows):
                group, row = group + 1, 0
            if group == self.groups:
                epoch, epoch_row, group = epoch + 1, 0, 0
        self.next_row = EpochPosition(epoch, epoch_row, group, row)
        return Parts.joined(parts)

    def position(self) -> dict[str, Any]:
        """Position as a small JSON-serializable dict."""
        return self.next_row._asdict()

    def locate(
        self, state: Mapping[str, Any] | None, deal: Deal, other_data: bool = False
    ) -> EpochPosition:
        """Convert a state to a position for `move`; None: the start.

        Arguments:
            other_data: whether the data may have changed; the position is then the same row of the
                same group, or the start of the next group or epoch if there are fewer rows.

        Raises:
            SetpointError: the position does not exist.
        """
        if state is None:
            return EpochPosition()
        numbers = [state[name] for name in EpochPosition._fields]
        epoch, epoch_row, group, row = numbers
        valid = all(type(number) is int and number >= 0 for number in numbers)
        if valid and other_data and group >= self.groups:
            epoch, epoch_row, group, row = epoch + 1, 0, 0, 0
        valid = valid and group < self.groups
        rows = len(self.group(epoch, group)) if valid else 0
        if valid and other_data and row >= rows:
            epoch, group = divmod(epoch * self.groups + group + 1, self.groups)
            epoch_row, row = epoch_row if group else 0, 0
        elif not valid or row >= rows:
            raise SetpointError(
                f"data loader state: epoch {epoch!r}, group {group!r}, row {row!r} is not a "
                f"position.\nValid: epoch 0 or more, group 0 to {self.groups - 1}, and a row of "
                f"that group."
            )
        return EpochPosition(epoch, epoch_row, group, row)

    def move(self, position: EpochPosition) -> None:
        """Continue at a position."""
        self.next_row = position

    def close(self) -> None:
        """Clear cached groups."""
        self.group.cache_clear()
