from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from setpoint.config import SetpointError
from setpoint.data.corpus import Corpus
from setpoint.data.evaluation import cut_rows
from setpoint.data.rows import DocumentRows, Parts, training_rows
from setpoint.shapes.batch import IGNORE_INDEX, Batch


def cut(corpus: Corpus, starts: list[int], length: int) -> Batch:
    """Rows that begin at some tokens, as far as the corpus goes."""
    first = np.array(starts)
    lengths = np.minimum(length, len(corpus.tokens) - 1 - first)
    parts = Parts(first, lengths, np.arange(1, len(starts) + 1))
    return DocumentRows(corpus, length, count=None).rows(parts)


def test_targets_are_the_inputs_one_token_later(corpus_of: Callable[..., Corpus]) -> None:
    batch = cut(corpus_of(b"abcd", b"ef"), [0, 3], 3)
    assert batch.inputs.tolist() == [[256, 97, 98], [99, 100, 256]]
    assert batch.targets.tolist() == [[97, 98, 99], [100, 256, 101]]
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert batch.inputs.is_contiguous()
    assert batch.targets.is_contiguous()
    assert (batch.target_tokens, batch.target_bytes) == (6, 5)


def test_a_window_past_the_end_is_padded_and_the_padding_is_not_predicted(
    corpus_of: Callable[..., Corpus],
) -> None:
    batch = cut(corpus_of(b"abc"), [2], 5)
    assert batch.inputs.tolist() == [[98, 99, 256, 256, 256]]
    assert batch.targets.tolist() == [[99, 256, IGNORE_INDEX, IGNORE_INDEX, IGNORE_INDEX]]
    assert (batch.target_tokens, batch.target_bytes) == (2, 1)


def test_cross_entropy_ignores_the_padding(corpus_of: Callable[..., Corpus]) -> None:
    batch = cut(corpus_of(b"abc"), [2], 5)
    loss = torch.nn.functional.cross_entropy(
        torch.zeros(5, 257), batch.targets.flatten(), reduction="sum"
    )
    assert loss.item() == pytest.approx(batch.target_tokens * np.log(257))


def test_batches_do_not_share_memory_with_the_corpus(corpus_of: Callable[..., Corpus]) -> None:
    corpus = corpus_of(b"abcd")
    cut(corpus, [0], 3).inputs.fill_(0)
    assert corpus.tokens.tolist() == [256, 97, 98, 99, 100, 256]


def test_a_corpus_below_one_row_is_refused(corpus_of: Callable[..., Corpus]) -> None:
    corpus = corpus_of(b"abc", side="train")  # 5 tokens
    assert len(training_rows(corpus, 4)) == 1
    with pytest.raises(SetpointError) as caught:
        training_rows(corpus, 5)
    message = str(caught.value)
    assert message.startswith("batch.sequence_length: 5 needs 6 tokens")
    assert "the training side has 5 (1 document, 3 bytes)" in message
    assert "up to 4" in message


@pytest.mark.parametrize("isolated", [False, True])
def test_rows_of_text_lie_in_the_corpus_as_they_are_read(
    corpus_of: Callable[..., Corpus], isolated: bool
) -> None:
    corpus = corpus_of(b"abcdefg", b"hi", b"", b"jklmnopqrstuv")
    for rows in (
        training_rows(corpus, 4, isolated=isolated),
        cut_rows(corpus, 4, isolated=isolated),
    ):
        batch = rows.rows(np.arange(len(rows)))
        stride = 5 if batch.target_tokens == 4 * len(rows) else 4
        for number, (inputs, targets) in enumerate(zip(batch.inputs, batch.targets, strict=True)):
            window = corpus.tokens[number * stride : number * stride + 5].tolist()
            have = targets != IGNORE_INDEX
            assert inputs[have].tolist() == window[:-1] and targets[have].tolist() == window[1:]
            if isolated and batch.documents is not None:
                separators = (inputs == corpus.separator) & have
                separators[0] = True
                assert (batch.documents[number] + 1 == separators.cumsum(0))[have].all()
