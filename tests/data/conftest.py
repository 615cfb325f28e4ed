from collections.abc import Callable

import pytest

from setpoint.data.corpus import Corpus, build_corpus
from setpoint.data.document import Document
from setpoint.data.tokenizer import ByteTokenizer


@pytest.fixture
def corpus_of() -> Callable[..., Corpus]:
    """Build a corpus from texts: `corpus_of(b"ab", b"cd")`."""

    def make(*texts: bytes, side: str = "train") -> Corpus:
        documents = [Document(f"t/{number}", text) for number, text in enumerate(texts)]
        return build_corpus(documents, ByteTokenizer(), side=side)

    return make
