from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.config import SetpointError
from setpoint.data.tokenizers.config import Bytes
from setpoint.data.tokenizers.tokenizer import ByteTokenizer


@given(data=st.binary())
@settings(deadline=None)
def test_round_trip_is_exact_and_separators_are_no_text(data: bytes) -> None:
    tokenizer = ByteTokenizer()
    tokens = tokenizer.encode(data)
    assert tokens.tolist() == list(data)
    assert tokens.dtype == np.uint16
    assert tokenizer.decode([256, *tokens.tolist(), 256]) == data
    assert int(tokenizer.token_bytes[tokens].sum()) == len(data)


def test_vocabulary_is_the_bytes_and_the_separator() -> None:
    tokenizer = ByteTokenizer(Bytes())
    assert (tokenizer.vocab_size, tokenizer.separator, tokenizer.name) == (257, 256, "bytes")
    assert tokenizer.token_bytes.tolist() == [1] * 256 + [0]


@pytest.mark.parametrize("wrong", [-1, 257, 1000])
def test_ids_outside_the_vocabulary_are_refused(wrong: int) -> None:
    with pytest.raises(SetpointError, match=f"{wrong} is not a token(.|\n)*0 to 256"):
        ByteTokenizer().decode([65, wrong])
