"""The order of the rows of an epoch: random, or that of their numbers.

Orders are keyed: numpy promises its bit generators' streams but not what `Generator.permutation`
and its like make of them, and a resumed run must see the same rows under a newer numpy. So the
little that the data needs is computed here, as a pure function of a key and a counter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from setpoint.data.rows import Rows

PART = 4096
"""Places whose order is computed at once; how many an epoch has makes no difference."""
ROUNDS = 6
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def random_bits(key: str, count: int) -> npt.NDArray[np.uint64]:
    """`count` random words; word i depends on nothing but the key and i, and all differ.

    Arguments:
        key: any text; other keys give unrelated words.

    Source: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",

    2014), started at the first 8 bytes of the key's SHA-256.
    """
    start = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
    words = np.arange(1, count + 1, dtype=np.uint64)
    words *= _STEP
    words += np.uint64(start)
    return _mixed(words)


def shuffled(key: str, size: int, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Items at some places of a random order of 0..size-1, of which no more is computed.

    A Feistel network over the bits of a place, whose rounds are SplitMix64's finalizer, is a
    bijection of 0 .. 4^h - 1 (Luby and Rackoff, 1988). What falls beyond the size goes through
    again until it does not: a walk along a cycle, so that the rest is a bijection, too.

    Arguments:
        key: any text; other keys give unrelated orders.
        size: below 2^62.
        places: each in 0..size-1.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    bits, mask = np.uint64(half), np.uint64(2**half - 1)
    keys = random_bits(key, ROUNDS)
    found = places.astype(np.uint64)
    beyond = np.arange(len(found))
    while len(beyond):
        left, right = found[beyond] >> bits, found[beyond] & mask
        for each in keys:
            left, right = right, left ^ (_mixed(right + each) & mask)
        found[beyond] = left << bits | right
        beyond = beyond[found[beyond] >= size]
    return found.astype(np.int64)


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finalizer, in place: a bijection whose bits depend on all bits."""
    words ^= words >> np.uint64(30)
    words *= _FIRST
    words ^= words >> np.uint64(27)
    words *= _SECOND
    words ^= words >> np.uint64(31)
    return words


class RowPlan(Protocol):
    """The rows of an epoch in groups, each a function of the epoch and its number."""

    @property
    def size(self) -> int:
        """Rows, or documents that are packed, of an epoch."""
        ...

    @property
    def groups(self) -> int:
        """Groups of an epoch."""
        ...

    @property
    def facts(self) -> dict[str, Any]:
        """Identity of the order, which a state must share."""
        ...

    def group(self, epoch: int, number: int) -> Rows:
        """The rows of a group."""
        ...

    def passed(self, epoch: int, group: int, row: int) -> int:
        """Number of rows or documents before a row of a group."""
        ...

    def joined(self, rows: Sequence[Rows]) -> Rows:
        """Rows after rows."""
        ...

    def close(self) -> None:
        """Drop the groups that are cached."""
        ...


class RowOrder:
    """Every row by its number once per epoch, in a new order each epoch or in that of the numbers.

    Arguments:
        size: rows in an epoch.
        name: of the source, where there are several streams with one seed.
        kind: `shuffled`, or how the documents are ordered whose rows have the numbers.
    """

    def __init__(self, seed: int, size: int, name: str = "", kind: str = "shuffled") -> None:
        self.seed, self.size, self.kind = seed, size, kind
        self.groups = -(-size // PART)
        self.stream = f"windows/{seed}/{name}/" if name else f"windows/{seed}/"
        # Two: a batch which crosses into the next part needs both.
        self.group = lru_cache(maxsize=2)(self._draw)

    @property
    def facts(self) -> dict[str, Any]:
        """See `RowPlan.facts`."""
        return {"seed": self.seed, "method": "concatenate", "order": self.kind}

    def passed(self, epoch: int, group: int, row: int) -> int:
        """See `RowPlan.passed`."""
        return group * PART + row

    def joined(self, rows: Sequence[Rows]) -> Rows:
        """See `RowPlan.joined`."""
        return rows[0].copy() if len(rows) == 1 else np.concatenate([np.empty(0, np.int64), *rows])

    def close(self) -> None:
        """See `RowPlan.close`."""
        self.group.cache_clear()

    def _draw(self, epoch: int, part: int) -> npt.NDArray[np.int64]:
        places = np.arange(part * PART, min(self.size, (part + 1) * PART))
        shuffle = self.kind == "shuffled"
        return shuffled(f"{self.stream}{epoch}", self.size, places) if shuffle else places
