"""The order in which an epoch goes through its sequences, a function of (seed, epoch)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from setpoint.data.keyed_random import shuffled

PART = 4096
"""Places whose order is computed at once; how many an epoch has makes no difference."""


class Order:
    """Every sequence once per epoch, in a new order each epoch or in that of the sources; endless.

    Arguments:
        size: sequences in an epoch.
        name: of the source, where there are several streams with one seed.
        shuffle: whether the order is a random one.
    """

    def __init__(self, seed: int, size: int, name: str = "", shuffle: bool = True) -> None:
        self.seed, self.shuffle = seed, shuffle
        self.size = size
        self.stream = f"windows/{seed}/{name}/" if name else f"windows/{seed}/"
        # Two: a batch which crosses into the next part needs both.
        self._part = lru_cache(maxsize=2)(self._draw)

    def at(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The sequences at positions in the stream of all epochs, (B,) -> (B,)."""
        epochs, places = np.divmod(positions, self.size)
        found = np.empty_like(positions)
        parts, places = np.divmod(places, PART)
        for epoch, part in sorted(set(zip(epochs.tolist(), parts.tolist(), strict=True))):
            here = (epochs == epoch) & (parts == part)
            found[here] = self._part(epoch, part)[places[here]]
        return found

    def stretch(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """The sequences at `count` positions from `first` on."""
        epoch, place = divmod(first, self.size)
        part, place = divmod(place, PART)
        found = self._part(epoch, part)[place : place + count]
        return found.copy() if len(found) == count else self.at(np.arange(first, first + count))

    def forget(self) -> None:
        """Drop the parts that are kept; they are drawn again when they are needed."""
        self._part.cache_clear()

    def _draw(self, epoch: int, part: int) -> npt.NDArray[np.int64]:
        key = f"{self.stream}{epoch}"
        first, last = part * PART, min(self.size, (part + 1) * PART)
        if not self.shuffle:
            return np.arange(first, last)
        return shuffled(key, self.size, np.arange(first, last))
