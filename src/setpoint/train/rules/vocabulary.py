"""Cross-section checks of the model's vocabulary and the tokenizer's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Caution, Problem
from setpoint.data.tokenizers.config import BYTES_VOCABULARY, Bytes
from setpoint.model.config import Transformer
from setpoint.model.vocabulary import embedding_rows, misfit

if TYPE_CHECKING:
    from setpoint.data.tokenizers.config import TokenizerConfig
    from setpoint.train.config import Job

FACTOR = 4


def known_vocabulary(tokenizer: TokenizerConfig) -> int | None:
    """Find how many tokens a tokenizer has, where that is known without building it.

    Arguments:
        tokenizer: its section; of one in files these are read, if they are here.
    """
    if isinstance(tokenizer, Bytes):
        return BYTES_VOCABULARY
    from setpoint.data.tokenizers.vocabulary import vocabulary_size

    return vocabulary_size(tokenizer)


def vocabulary_problems(job: Job) -> Iterator[Problem]:
    """Compare the model's vocabulary with the tokenizer's."""
    model = job.model
    if not isinstance(model, Transformer):
        return
    tokens = known_vocabulary(job.tokenizer)
    if tokens is None:
        return
    field = "vocab_multiple_of" if model.vocab_size is None else "vocab_size"
    reason, rows = misfit(model, tokens), embedding_rows(model, tokens)
    if reason is not None:
        yield Problem(
            "model.vocab_size",
            reason,
            valid=(str(tokens), "null"),
            also=("tokenizer",),
        )
    elif rows > FACTOR * tokens:
        yield Caution(
            "vocabulary-mostly-unused",
            f"model.{field}",
            f"of {rows} rows of the embedding only {tokens} stand for tokens of the tokenizer; the "
            f"others cost memory and time",
            valid=("null",) if field == "vocab_size" else ("1", "64"),
            also=("tokenizer",),
        )
