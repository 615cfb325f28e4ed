"""Random bits as a pure function of a key and a counter.

numpy promises its bit generators' streams but not what `Generator.permutation` and its like make of
them, and a resumed run must see the same windows under a newer numpy. So the little that the data
needs is computed here.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

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
    words ^= words >> np.uint64(30)
    words *= _FIRST
    words ^= words >> np.uint64(27)
    words *= _SECOND
    words ^= words >> np.uint64(31)
    return words


def permutation(key: str, size: int) -> npt.NDArray[np.int64]:
    """A random order of 0..size-1.

    Arguments:
        key: any text; other keys give unrelated orders.

    Returns:
        (size,) int64, each of 0..size-1 once. The sorted words all differ (SplitMix64 maps
        distinct counters to distinct words), so the result depends on no sorting algorithm.
    """
    return np.argsort(random_bits(key, size))
