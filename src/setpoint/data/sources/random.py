"""Synthetic documents with a known entropy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from setpoint.data.document import Document
from setpoint.data.keyed_random import random_bits
from setpoint.data.sources.config import Random

FIRST_BYTE = 32  # symbols start at the space, so an alphabet of up to 95 is printable ASCII
SUCCESSOR = 0.75  # share of "markov" steps that go to the next symbol of the alphabet


class RandomSource:
    """Documents drawn from a seed alone, the same on every machine and numpy version.

    With A = `alphabet`, "uniform" draws each byte independently: log2(A) bits per byte, nothing to
    learn. "markov" moves from symbol x to x + 1 (mod A) three times in four and otherwise to any
    symbol: single bytes are still uniform, so a unigram model stays at log2(A), and the rest is
    learnable from the byte before. See `entropy`.

    Arguments:
        where: the path of `config` in the job, for messages.
    """

    def __init__(self, config: Random, *, where: str = "data.sources") -> None:
        self.config = config
        self.where = where

    def documents(self) -> Iterator[Document]:
        """Draw the documents.

        Returns:
            an iterator of `documents` documents of `length` bytes each.
        """
        config = self.config
        for number in range(config.documents):
            name = f"{config.name}/{number:06d}"
            # The pattern is not part of the key: both patterns come from the same draws.
            bits = random_bits(f"{config.seed}/{number}", config.length)
            symbols = _uniform(bits, config.alphabet)
            if config.pattern == "markov":
                symbols = _chain(bits, symbols, config.alphabet)
            yield Document(name, (symbols + FIRST_BYTE).astype(np.uint8).tobytes())

    def inputs(self) -> Iterator[str]:
        """None: the section says all."""
        return iter(())

    def entropy(self) -> float:
        """Bits per byte that no model can beat, document ends left aside.

        Returns:
            the entropy rate: log2(A) for "uniform"; for "markov" the entropy of one step, which
            is the successor with probability 3/4 + 1/(4A) and each other symbol with 1/(4A).
        """
        size = self.config.alphabet
        probabilities = np.full(size, 1 / size)
        if self.config.pattern == "markov":
            probabilities *= 1 - SUCCESSOR
            probabilities[0] += SUCCESSOR
        return float(-(probabilities * np.log2(probabilities)).sum())


def _uniform(bits: npt.NDArray[np.uint64], size: int) -> npt.NDArray[np.int64]:
    """Symbols 0..size-1 from the low half of each word, by multiply and shift."""
    low = bits & np.uint64(0xFFFFFFFF)
    return ((low * np.uint64(size)) >> np.uint64(32)).astype(np.int64)


def _chain(
    bits: npt.NDArray[np.uint64], drawn: npt.NDArray[np.int64], size: int
) -> npt.NDArray[np.int64]:
    """A Markov chain as a running sum: its steps are independent, so no loop is needed."""
    successor = (bits >> np.uint64(32)) < np.uint64(int(SUCCESSOR * 2**32))
    steps = np.where(successor, 1, drawn)
    steps[0] = drawn[0]  # the first symbol is uniform, and then all are
    return np.cumsum(steps) % size
