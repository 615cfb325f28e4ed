from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from setpoint.config import SetpointError
from setpoint.data.store import Corpus
from setpoint.data.windows import cut, require_one_window
from setpoint.shapes.batch import IGNORE_INDEX


def test_targets_are_the_inputs_one_token_later(corpus_of: Callable[..., Corpus]) -> None:
    batch = cut(corpus_of(b"abcd", b"ef"), np.array([0, 3]), 3)
    assert batch.inputs.tolist() == [[256, 97, 98], [99, 100, 256]]
    assert batch.targets.tolist() == [[97, 98, 99], [100, 256, 101]]
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert batch.inputs.is_contiguous()
    assert batch.targets.is_contiguous()
    assert (batch.target_tokens, batch.target_bytes) == (6, 5)


def test_a_window_past_the_end_is_padded_and_the_padding_is_not_predicted(
    corpus_of: Callable[..., Corpus],
) -> None:
    batch = cut(corpus_of(b"abc"), np.array([2]), 5)
    assert batch.inputs.tolist() == [[98, 99, 256, 256, 256]]
    assert batch.targets.tolist() == [[99, 256, IGNORE_INDEX, IGNORE_INDEX, IGNORE_INDEX]]
    assert (batch.target_tokens, batch.target_bytes) == (2, 1)


def test_cross_entropy_ignores_the_padding(corpus_of: Callable[..., Corpus]) -> None:
    batch = cut(corpus_of(b"abc"), np.array([2]), 5)
    loss = torch.nn.functional.cross_entropy(
        torch.zeros(5, 257), batch.targets.flatten(), reduction="sum"
    )
    assert loss.item() == pytest.approx(batch.target_tokens * np.log(257))


def test_batches_do_not_share_memory_with_the_corpus(corpus_of: Callable[..., Corpus]) -> None:
    corpus = corpus_of(b"abcd")
    cut(corpus, np.array([0]), 3).inputs.fill_(0)
    assert corpus.tokens.tolist() == [256, 97, 98, 99, 100, 256]


def test_a_corpus_below_one_window_is_refused(corpus_of: Callable[..., Corpus]) -> None:
    corpus = corpus_of(b"abc", side="train")  # 5 tokens
    require_one_window(corpus, 4)
    with pytest.raises(SetpointError) as caught:
        require_one_window(corpus, 5)
    message = str(caught.value)
    assert message.startswith("batch.sequence_length: 5 needs 6 tokens")
    assert "the training side has 5 (1 document, 3 bytes)" in message
    assert "up to 4" in message
