"""What scalars without quotes mean where no field has a type."""

import math

import pytest

from setpoint.config.words.errors import SetpointError
from setpoint.config.words.plain_data import PlainScalar, guess


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("FALSE", False),
        ("0", 0),
        ("-12", -12),
        ("+007", 7),
        ("0x1F", 31),
        ("0o17", 15),
        ("1.", 1.0),
        (".5", 0.5),
        ("-1e-5", -1e-5),
        ("1E+16", 1e16),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("+.Inf", math.inf),
    ],
)
def test_core_schema(text, value):
    found = guess(PlainScalar(text))
    assert found == value and type(found) is type(value)


def test_not_a_number():
    assert math.isnan(guess(PlainScalar(".nan")))


@pytest.mark.parametrize(
    "text",
    # What other schemas and Python itself would take for something else.
    [
        *("yes", "tRUE", "1_000", "0b1", "0x", "0o8", "-0x1", "\u0661", "1e", "e5", ".", "+"),
        *("-.nan", "inf", "nan", "1:30", "1.2.3", "0x_1", " 1", "1 ", "--1", "", ".e1", "1e1.5"),
        "2024-01-31",
    ],
)
def test_everything_else_is_text(text):
    found = guess(PlainScalar(text))
    assert found == text and type(found) is str


def test_hexadecimal_digits_that_stand_for_more_decimal_ones_are_refused():
    with pytest.raises(SetpointError, match="more digits than can be written"):
        guess(PlainScalar("0x" + "f" * 4200))
    assert guess(PlainScalar("0x" + "f" * 3500)) == 16**3500 - 1


def test_a_number_beyond_floats_is_refused():
    for text in ("1e999", "-1e999", "1" + "0" * 400 + "."):
        with pytest.raises(SetpointError, match="too large for a floating-point number"):
            guess(PlainScalar(text))
    assert guess(PlainScalar("-.inf")) == -math.inf
