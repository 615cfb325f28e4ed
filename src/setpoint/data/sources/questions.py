"""Synthetic questions whose answers are known, as tokens with a mask over the answers."""

from __future__ import annotations

from collections.abc import Iterator
from string import ascii_lowercase

import numpy as np

from setpoint.data.document import Document
from setpoint.data.keyed_random import random_bits
from setpoint.data.sources.config import Questions
from setpoint.data.tokenizers.tokenizer import Tokenizer

LETTERS = 4
"""Of a word."""


def question(task: str, word: str) -> tuple[str, str]:
    """A question, in the form of Python, and its answer.

    Arguments:
        task: `upper`, the word in capital letters, or `last`, its last letter.
    """
    answer = word.upper() if task == "upper" else word[-1]
    return f"{task}({word!r}) == ", repr(answer)


class QuestionsSource:
    """Documents of which each is a question: `setpoint.data.document.TokenSource`.

    They are drawn from a seed alone. The answer and the end of text behind it are trained on, as
    those of conversations under the chat template `plain`; an end of text stands before the
    question as well, as before any text.

    Arguments:
        where: the path of `config` in the job, for messages.
    """

    def __init__(self, config: Questions, *, where: str = "data.sources") -> None:
        self.config = config
        self.where = where

    def questions(self) -> Iterator[tuple[str, str]]:
        """Draw the questions with their answers."""
        for number in range(self.config.documents):
            bits = random_bits(f"{self.config.seed}/{number}", LETTERS + 1)
            *letters, task = (bits >> np.uint64(32)).tolist()
            word = "".join(ascii_lowercase[each * len(ascii_lowercase) >> 32] for each in letters)
            yield question(("upper", "last")[task & 1], word)

    def tokenized(self, tokenizer: Tokenizer) -> Iterator[Document]:
        """Encode each question."""
        for number, (asked, answer) in enumerate(self.questions()):
            first = np.append(tokenizer.separator, tokenizer.encode(asked.encode()))
            tokens = np.concatenate([first, tokenizer.encode(answer.encode())])
            tokens = np.append(tokens, tokenizer.separator)
            trained = np.arange(len(tokens)) >= len(first)
            name = f"{self.config.name}/{number:06d}"
            yield Document(name, f"{asked}{answer}".encode(), tokens, trained)

    def texts(self) -> Iterator[Document]:
        """Questions and answers, for training a tokenizer."""
        for number, each in enumerate(self.questions()):
            yield Document(f"{self.config.name}/{number:06d}", "".join(each).encode())

    def inputs(self) -> Iterator[str]:
        """None: the section says all."""
        return iter(())
