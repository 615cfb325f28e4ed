import pytest

from setpoint.config import SetpointError
from setpoint.model.parameters import embedding_rows, predicted_tokens, require_fit, vocab_error

from .small import small_config


@pytest.mark.parametrize(
    ("fields", "rows", "predicted"),
    [
        ({}, 257, 257),
        ({"vocab_multiple_of": 64}, 320, 257),
        ({"vocab_multiple_of": 257}, 257, 257),
        ({"vocab_size": 300}, 300, 300),
        ({"vocab_size": 257}, 257, 257),
    ],
)
def test_rows(fields, rows, predicted):
    config = small_config(**fields)
    assert embedding_rows(config, 257) == rows
    assert predicted_tokens(config, 257) == predicted
    assert vocab_error(config, 257) is None
    require_fit(config, 257)


def test_too_few():
    config = small_config(vocab_size=256)
    assert "256 rows do not hold the 257 tokens" in (vocab_error(config, 257) or "")
    with pytest.raises(SetpointError, match=r"model\.vocab_size = 256: .* valid: 257 or more"):
        require_fit(config, 257)
