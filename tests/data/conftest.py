from __future__ import annotations

from collections.abc import Callable

import pytest
from torch.utils.data import dataloader

from setpoint.data.corpus import Corpus, build_corpus
from setpoint.data.document import Document
from setpoint.data.tokenizers.tokenizer import ByteTokenizer


@pytest.fixture
def quick_to_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch look every 50 ms whether workers live, in place of every five seconds."""
    wait = dataloader._MultiProcessingDataLoaderIter._try_get_data
    monkeypatch.setattr(wait, "__defaults__", (0.05,))


@pytest.fixture
def corpus_of() -> Callable[..., Corpus]:
    """Build a corpus from texts: `corpus_of(b"ab", b"cd")`."""

    def make(*texts: bytes, side: str = "train") -> Corpus:
        documents = [Document(f"t/{number}", text) for number, text in enumerate(texts)]
        return build_corpus(documents, ByteTokenizer(), side=side)

    return make
