"""Synthetic documents, drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from string import ascii_lowercase

import numpy as np
import numpy.typing as npt

from setpoint.data.document import BuiltSource, Document
from setpoint.data.order import random_bits
from setpoint.data.sources.config import Questions, Random
from setpoint.data.tokenizer import Tokenizer

FIRST_BYTE = 32  # symbols start at the space, so an alphabet of up to 95 is printable ASCII
SUCCESSOR = 0.75  # share of "markov" steps that go to the next symbol of the alphabet


class RandomSource(BuiltSource[Random]):
    """Documents drawn from a seed, the same on every machine and with every numpy version.

    With A = `alphabet`, "uniform" draws each byte independently: log2(A) bits per byte, nothing to
    learn. "markov" steps from symbol x to x + 1 (mod A) with probability 3/4 and otherwise to a
    random symbol: single bytes are still uniform, so a unigram model stays at log2(A), and the
    rest is learnable from the previous byte. See `entropy`.
    """

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
        """No inputs, because the documents depend only on the section."""
        return iter(())

    def entropy(self) -> float:
        """Entropy rate in bits per byte, without document ends: a lower bound for any model.

        Returns:
            log2(A) for "uniform"; for "markov" the entropy of one step, which is the successor with
            probability 3/4 + 1/(4A) and each other symbol with 1/(4A).
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
    """A Markov chain as a cumulative sum of independent steps."""
    successor = (bits >> np.uint64(32)) < np.uint64(int(SUCCESSOR * 2**32))
    steps = np.where(successor, 1, drawn)
    steps[0] = drawn[0]  # the first symbol is uniform, and then all are
    return np.cumsum(steps) % size


LETTERS = 4
"""Letters per word."""


def question(task: str, word: str) -> tuple[str, str]:
    """A question, as a Python expression, and its answer.

    Arguments:
        task: `upper`, the word in upper case, or `last`, its last letter.
    """
    answer = word.upper() if task == "upper" else word[-1]
    return f"{task}({word!r}) == ", repr(answer)


class QuestionsSource(BuiltSource[Questions]):
    """Questions with answers, one per document: `setpoint.data.document.TokenSource`.

    Questions are drawn from a seed. The answer and the end of text after it are targets, as in
    conversations with the chat template `plain`; an end of text also precedes the question.
    """

    def questions(self) -> Iterator[tuple[str, str]]:
        """Draw the questions with their answers."""
        for number in range(self.config.documents):
            bits = random_bits(f"{self.config.seed}/{number}", LETTERS + 1)
            *letters, task = (bits >> np.uint64(32)).tolist()
            word = "".join(ascii_lowercase[draw * len(ascii_lowercase) >> 32] for draw in letters)
            yield question(("upper", "last")[task & 1], word)

    def tokenized(self, tokenizer: Tokenizer) -> Iterator[Document]:
        """Encode each question."""
        for number, (question, answer) in enumerate(self.questions()):
            first = np.append(tokenizer.separator, tokenizer.encode(question.encode()))
            tokens = np.concatenate([first, tokenizer.encode(answer.encode())])
            tokens = np.append(tokens, tokenizer.separator)
            trained = np.arange(len(tokens)) >= len(first)
            name = f"{self.config.name}/{number:06d}"
            yield Document(name, f"{question}{answer}".encode(), tokens, trained)

    def texts(self) -> Iterator[Document]:
        """Questions and answers, for training a tokenizer."""
        for number, pair in enumerate(self.questions()):
            yield Document(f"{self.config.name}/{number:06d}", "".join(pair).encode())

    def inputs(self) -> Iterator[str]:
        """No inputs, because the documents depend only on the section."""
        return iter(())
