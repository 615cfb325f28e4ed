from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from setpoint.config import ImportPath, plain
from setpoint.config.words.plain_data import PlainScalar
from setpoint.config.words.text import in_full
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
def test_values(value: object, text: str, data: object) -> None:
    assert in_full(value) == text
    assert plain(value) == data
    json.dumps(plain(value), allow_nan=False)


def test_sections() -> None:
    assert in_full(AdamWConfig()) == "'adamw'"
    assert in_full(Evaluation()) == "(a section)"
    assert plain(AdamWConfig()) == "adamw"
