from collections.abc import Mapping
from typing import Any

import pytest

from setpoint.config import Invalid
from setpoint.config.words.plain_data import PlainScalar
from setpoint.config.words.text import for_error, shown_part


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (PlainScalar("fast"), "fast"),
        (PlainScalar(""), "''"),
        (PlainScalar("\x1b[31m"), "'\\x1b[31m'"),
        ("fast", "'fast'"),
        (None, "null"),
        (True, "true"),
        (7, "7"),
        (7.0, "7.0"),
        ([1, "a", [None]], "[1, 'a', [null]]"),
        ({"a": 1}, "{a: 1}"),
        (object, "the class object"),
        ("x" * 1000, "'" + "x" * 96 + "..."),
        (list(range(10**5)), None),
    ],
)
def test_values_as_errors_show_them(value: object, text: str | None) -> None:
    assert len(for_error(value)) <= 100
    assert text is None or for_error(value) == text


@pytest.mark.parametrize(
    ("value", "at", "text"),
    [
        ({"a": [1, 2]}, ("a", 1), "2"),
        ([{"a": 1}], (0, "a"), "1"),
        ([1], (5,), "null"),
        (PlainScalar("[a, b]"), (1,), "b"),
        (PlainScalar("{a: {b: 3}}"), ("a", "b"), "3"),
        (PlainScalar("{a"), ("a",), "{a"),
        (3, ("a",), "3"),
    ],
)
def test_the_part_that_an_error_is_about(
    value: list[Any] | Mapping[str, Any] | str, at: tuple[str | int, ...], text: str
) -> None:
    assert shown_part(value, Invalid("is wrong", at=at)) == text
    assert shown_part(value, Invalid("is wrong", at=at, secret=True)) == "***"
