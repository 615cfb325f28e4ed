"""Values as errors and listings show them."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import ImportPath, Invalid, plain
from setpoint.config.words.plain_data import PlainScalar
from setpoint.config.words.text import for_error, in_full, shown_part
from setpoint.optim.config import AdamWConfig
from setpoint.train.evaluation.config import Evaluation
from setpoint.units import ByteSize, DType, Duration, Period

VALUES = [
    (None, "null", None),
    (True, "true", True),
    (3, "3", 3),
    (1e-5, "1e-05", 1e-5),
    (float("inf"), "inf", "inf"),
    ("a'b", '"a\'b"', "a'b"),
    (PlainScalar("x"), "x", "x"),
    ((0.9, 0.95), "[0.9, 0.95]", [0.9, 0.95]),
    ([None, "x"], "[null, 'x']", [None, "x"]),
    ({"a": [1]}, "{a: [1]}", {"a": [1]}),
    (Path("runs/x"), "'runs/x'", "runs/x"),
    (Period("100 steps"), "'100 steps'", "100 steps"),
    (Duration("2 epochs", "1 h"), "['2 epochs', '1 h']", ["2 epochs", "1 h"]),
    (ByteSize("16 MiB"), "'16 MiB'", "16 MiB"),
    (DType("bf16"), "'bfloat16'", "bfloat16"),
    (ImportPath("a.b"), "'a.b'", "a.b"),
    (re.compile("(?i)x"), "'(?i)x'", "(?i)x"),
    ("\033[31m", "'\\x1b[31m'", "\033[31m"),
]


@pytest.mark.parametrize(("value", "text", "data"), VALUES)
def test_values_are_shown_as_typed(value: object, text: str, data: object) -> None:
    assert in_full(value) == text
    assert plain(value) == data
    json.dumps(plain(value), allow_nan=False)


def test_sections_are_shown_as_mappings() -> None:
    assert in_full(AdamWConfig()) == "'adamw'"
    assert in_full(Evaluation()) == "(a section)"
    assert plain(AdamWConfig()) == "adamw"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (PlainScalar(""), "''"), (PlainScalar("\x1b[31m"), "'\\x1b[31m'"), (None, "null"),
        (True, "true"), ([1, "a", [None]], "[1, 'a', [null]]"), ({"a": 1}, "{a: 1}"),
        (object, "the class object"), ("x" * 1000, "'" + "x" * 96 + "..."),
        (list(range(10**5)), None),
    ],
)  # fmt: skip
def test_values_as_errors_show_them(value: object, text: str | None) -> None:
    assert len(for_error(value)) <= 100
    assert text is None or for_error(value) == text


@pytest.mark.parametrize(
    ("value", "at", "text"),
    [
        ({"a": [1, 2]}, ("a", 1), "2"),
        ([1], (5,), "null"),
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
