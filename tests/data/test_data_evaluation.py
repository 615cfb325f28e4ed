from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.config import SetpointError
from setpoint.data.corpus import Corpus, build_corpus
from setpoint.data.document import Document
from setpoint.data.evaluation import evaluation_batches
from setpoint.data.tokenizers.tokenizer import ByteTokenizer
from setpoint.data.windows import evaluation_windows
from setpoint.shapes.batch import IGNORE_INDEX


@given(
    texts=st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=6),
    sequence_length=st.integers(1, 12),
    micro_size=st.integers(1, 5),
)
@settings(max_examples=100, deadline=None)
def test_every_token_but_the_first_is_predicted_once_in_order(
    texts: list[bytes], sequence_length: int, micro_size: int
) -> None:
    documents = [Document(str(i), text) for i, text in enumerate(texts)]
    corpus = build_corpus(documents, ByteTokenizer(), side="held_out")
    if len(corpus.tokens) <= sequence_length:
        return
    windows = evaluation_windows(corpus, sequence_length)
    batches = list(evaluation_batches(windows, micro_size=micro_size))
    predicted = [t for b in batches for t in b.targets.flatten().tolist() if t != IGNORE_INDEX]
    assert predicted == corpus.tokens[1:].tolist()
    assert sum(b.target_tokens for b in batches) == len(predicted)
    assert sum(b.target_bytes for b in batches) == corpus.byte_count == sum(map(len, texts))
    assert [len(b.inputs) for b in batches[:-1]] == [micro_size] * (len(batches) - 1)
    assert sum(len(b.inputs) for b in batches) == len(windows)


def test_the_first_windows_are_the_same_however_they_are_grouped(
    corpus_of: Callable[..., Corpus],
) -> None:
    corpus = corpus_of(bytes(range(100)), side="held_out")
    windows = evaluation_windows(corpus, 5)
    grouped = [
        [
            row
            for batch in evaluation_batches(windows, micro_size=size, limit=7)
            for row in batch.inputs.tolist()
        ]
        for size in (1, 3, 7, 50)
    ]
    assert len(grouped[0]) == 7
    assert all(group == grouped[0] for group in grouped)


def test_more_windows_than_there_are_means_all(corpus_of: Callable[..., Corpus]) -> None:
    corpus = corpus_of(b"abcdefgh")  # 10 tokens, 9 targets
    batches = list(evaluation_batches(evaluation_windows(corpus, 4), micro_size=2, limit=1000))
    assert [len(batch.inputs) for batch in batches] == [2, 1]


def test_refusals_come_at_the_call(corpus_of: Callable[..., Corpus]) -> None:
    corpus = corpus_of(b"abc", side="held_out")
    windows = evaluation_windows(corpus, 2)
    with pytest.raises(SetpointError, match="sequence_length: 0 is below 1"):
        evaluation_windows(corpus, 0)
    with pytest.raises(SetpointError, match="micro_size: 0 is below 1"):
        evaluation_batches(windows, micro_size=0)
    with pytest.raises(SetpointError, match="sequences: 0 is below 1"):
        evaluation_batches(windows, micro_size=1, limit=0)
