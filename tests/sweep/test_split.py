"""Commas separate points, unless they stand inside something."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.config import SetpointError
from setpoint.config.words.plain_data import PlainScalar
from setpoint.sweep.setting import point_value, split_points


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("1e-4", ["1e-4"]),
        ("1e-4,3e-4", ["1e-4", "3e-4"]),
        (" a , b ", ["a", "b"]),
        ("[0.9,0.95]", ["[0.9,0.95]"]),
        ("[1,2],[3,4]", ["[1,2]", "[3,4]"]),
        ("smoke(steps=5, a=1),tiny", ["smoke(steps=5, a=1)", "tiny"]),
        ("{type = a, lr = 1},b", ["{type = a, lr = 1}", "b"]),
        ("${a * 2},${min(b, c)}", ["${a * 2}", "${min(b, c)}"]),
        ('"a,b",c', ['"a,b"', "c"]),
        (r'"a\",b",c', [r'"a\",b"', "c"]),
        ("['a,]',b],c", ["['a,]',b]", "c"]),
        ("don't,stop", ["don't", "stop"]),
        ("a,", ["a", ""]),
        (",", ["", ""]),
        # What is not closed is left to the reader of the value, which says so.
        ("[1,2", ["[1,2"]),
        ('"a,b', ['"a', "b"]),
        ("a],b", ["a]", "b"]),
        ("", [""]),
    ],
)
def test_split(text: str, parts: list[str]) -> None:
    assert split_points(text) == parts


def test_quotes_make_a_text_and_other_values_stay_to_be_read() -> None:
    assert point_value('"a,b"') == "a,b"
    assert not isinstance(point_value('"1"'), PlainScalar)
    assert isinstance(point_value("1"), PlainScalar)
    with pytest.raises(SetpointError, match="empty value between commas"):
        point_value("")


@given(st.lists(st.text("abc019.-_", min_size=1), min_size=2))
def test_words_come_back(words: list[str]) -> None:
    assert split_points(",".join(words)) == words


@given(st.text("ab,[](){}\"' \\$=", max_size=40))
def test_any_text_is_split_without_loss(text: str) -> None:
    parts = split_points(text)
    assert "".join(parts).replace(" ", "") == text.replace(" ", "") or ",".join(parts).replace(
        " ", ""
    ) == text.replace(" ", "")


def test_a_long_text_is_split_in_no_time() -> None:
    assert split_points("'" * 100_000 + ",a" * 2)[-1] == "a"
    assert len(split_points("x," * 50_000)) == 50_001
