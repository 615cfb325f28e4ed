"""Values typed in one text: lists, mappings and YAML's core schema."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.config import Invalid
from setpoint.config.words.plain_data import PlainScalar, guess
from setpoint.config.words.text import parse_flow, parse_list

from ...support.snapshots import refused


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{rank: 8, targets: [q, v]}", {"rank": "8", "targets": ["q", "v"]}),
        ('{type = "text", paths = [a, b]}', {"type": "text", "paths": ["a", "b"]}),
        ("[1, 2,]", ["1", "2"]),
        ("[a b, 'c, d', \"e\\n\"]", ["a b", "c, d", "e\n"]),
        ("{lr: ${a[0] * 2}, x: 1}", {"lr": "${a[0] * 2}", "x": "1"}),
        ('["\\ud83d\\ude00", "\\u00e9"]', ["\U0001f600", "é"]),
        ("word", "word"),
    ],
)
def test_lists_mappings_and_quotes_are_read(text: str, value: object) -> None:
    assert parse_flow(text) == value


def test_words_are_to_be_read_by_type_and_quoted_texts_are_not() -> None:
    items = parse_list("1, '1'")
    assert [type(item) is PlainScalar for item in items] == [True, False]
    assert parse_list("") == parse_list("[]") == []


@pytest.mark.parametrize(
    "text",
    [
        "[1", "{a}", "{a: 1, a: 2}", "[1] 2", "['a", '["\\q"]', '["\\u1_00"]', '["\\ud800"]', "[,]",
        "[${a]", "[a 'b']]", "[" * 40,
    ],
)  # fmt: skip
def test_broken_values_are_refused_with_their_position(text: str) -> None:
    with refused(Invalid):
        parse_flow(text)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(PLAIN, max_size=3) | st.dictionaries(st.text(), PLAIN, max_size=3))
def test_json_is_read(value: object) -> None:
    assert plain(parse_flow(json.dumps(value))) == value


def plain(value: object) -> object:
    """The value with its words read by the rules of YAML."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return (
        None
        if value == PlainScalar("null") and type(value) is PlainScalar
        else (guess(value) if isinstance(value, PlainScalar) else value)
    )


# What scalars without quotes mean where no field has a type.


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True), ("FALSE", False), ("-12", -12), ("+007", 7), ("0x1F", 31), ("1.", 1.0),
        (".5", 0.5), ("-1e-5", -1e-5), (".inf", math.inf),
    ],
)  # fmt: skip
def test_scalars_are_read_by_the_core_schema_of_yaml(text, value):
    found = guess(PlainScalar(text))
    assert found == value and type(found) is type(value)


def test_dot_nan_is_not_a_number():
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
    with refused():
        guess(PlainScalar("0x" + "f" * 4200))
    assert guess(PlainScalar("0x" + "f" * 3500)) == 16**3500 - 1
    with refused():
        guess(PlainScalar("1" * 5000))


def test_a_number_beyond_floats_is_refused():
    for text in ("1e999", "-1e999", "1" + "0" * 400 + "."):
        with refused():
            guess(PlainScalar(text))
    assert guess(PlainScalar("-.inf")) == -math.inf
