"""The order of the rows of an epoch: a keyed random permutation, or sequential.

numpy guarantees the streams of its bit generators, but not the results of methods such as
`Generator.permutation`, and a resumed run must see the same rows under a newer numpy. So random
numbers and permutations are computed here, as pure functions of a key and a counter.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from setpoint.data.rows import DocumentRows, Parts

PART = 4096
"""Positions whose order is computed at once, whatever the size of the epoch."""
ROUNDS = 6
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def random_bits(key: str, count: int) -> npt.NDArray[np.uint64]:
    """`count` distinct random words; word i depends on the key and i only.

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


def shuffled(key: str, size: int, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Elements of a random permutation of 0..size-1 at some positions; no others are computed.

    A Feistel network over the bits of a position, with SplitMix64's finalizer as round function, is
    a bijection of 0 .. 4^h - 1 (Luby and Rackoff, 1988). Results from `size` on are permuted again
    until they are below it (cycle walking), which is a bijection of 0..size-1.

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


class RowPlan(ABC):
    """The rows of epochs, in groups that are functions of the epoch and the group number.

    Arguments:
        size: rows, or documents to pack, per epoch.
        group_size: of these, in a group; the last one may be smaller.
        key: of the random order.
        facts: properties of the order that must match when a state is loaded.
    """

    def __init__(self, size: int, group_size: int, key: str, facts: dict[str, Any]) -> None:
        self.size, self.group_size, self.key, self.facts = size, group_size, key, facts
        self.groups = -(-size // group_size)
        # Two: a batch which crosses into the next group needs both.
        self.group = lru_cache(maxsize=2)(self._rows)

    @abstractmethod
    def _rows(self, epoch: int, group: int) -> Parts:
        """The rows of a group."""

    @abstractmethod
    def passed(self, epoch: int, group: int, row: int) -> int:
        """Rows or documents before a row of a group."""

    def places(self, group: int) -> npt.NDArray[np.int64]:
        """Positions of a group in the order of an epoch."""
        return np.arange(group * self.group_size, min((group + 1) * self.group_size, self.size))

    def close(self) -> None:
        """Clear cached groups."""
        self.group.cache_clear()


class RowOrder(RowPlan):
    """The rows of an epoch in a new random order each epoch or in ascending order.

    Arguments:
        rows: rows by number.
        name: name of the source in a mixture.
        kind: `shuffled`, or the name of the fixed order of the documents.
    """

    def __init__(
        self, rows: DocumentRows, seed: int, name: str = "", kind: str = "shuffled"
    ) -> None:
        key = f"windows/{seed}/{name}/" if name else f"windows/{seed}/"
        facts = {"seed": seed, "order": kind, "method": "concatenate"}
        super().__init__(len(rows), PART, key, facts)
        self.rows, self.is_shuffled = rows, kind == "shuffled"

    def _rows(self, epoch: int, group: int) -> Parts:
        places = self.places(group)
        if self.is_shuffled:
            places = shuffled(f"{self.key}{epoch}", self.size, places)
        return self.rows.parts(places)

    def passed(self, epoch: int, group: int, row: int) -> int:
        return group * PART + row
