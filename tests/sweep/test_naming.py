"""Names of points: readable, safe, and as different as the points."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.config.words.plain_data import PlainScalar
from setpoint.sweep.setting import (
    MAX_NAME_LENGTH,
    Setting,
    axis_origin,
    labels,
    name_of,
    number_text,
    path_of,
    value_text,
)

SAFE = re.compile(r"[A-Za-z0-9._+~-]*")

VALUES: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False)
    | st.text(max_size=60).filter(lambda text: text != "null"),  # which is None, quoted or not
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def setting(path: str, value: object) -> Setting:
    return Setting(path_of(path), value, axis_origin(path))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3e-4, "3e-4"),
        (PlainScalar("0.0003"), "3e-4"),
        (PlainScalar("3e-4"), "3e-4"),
        (0.1, "0.1"),
        (0.001, "1e-3"),
        (1e6, "1e6"),
        (1.0, "1.0"),
        (1, "1"),
        (-2, "-2"),
        (float("inf"), "inf"),
        (True, "true"),
        (PlainScalar("true"), "true"),
        (None, "null"),
        (PlainScalar("null"), "null"),
        ("null", "null"),
        ("adamw", "adamw"),
        (PlainScalar("10 steps"), "10_steps"),
        ([0.9, 0.95], "0.9+0.95"),
        (PlainScalar("[0.9, 0.95]"), "0.9+0.95"),
        ([1], "+1"),
    ],
)
def test_values_read_as_people_write_them(value: object, text: str) -> None:
    assert value_text(value) == text


@pytest.mark.parametrize(
    "value",
    ["a/b", "../x", "a b", "", "1", "x" * 80, {"type": "sgd", "lr": 0.1}, "ü", "a+b", [""]],
)
def test_what_has_no_safe_text_gets_a_hash(value: object) -> None:
    assert re.fullmatch(r"[A-Za-z0-9._+-]*~[0-9a-f]{8}", value_text(value))


@given(VALUES)
def test_every_value_is_safe_in_a_file_name(value: object) -> None:
    text = value_text(value)
    assert SAFE.fullmatch(text) and len(text) <= 60


@given(VALUES, VALUES)
def test_different_values_have_different_texts(first: object, second: object) -> None:
    # `repr` tells 1 from True and from 1.0, and -0.0 from 0.0.
    if repr(first) != repr(second):
        assert value_text(first) != value_text(second)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_exact(number: float) -> None:
    assert float(number_text(number)) == number


def test_labels_are_the_shortest_that_tell_apart() -> None:
    paths = [path_of(text) for text in ("optimizer.lr", "schedule.lr", "seed", "a.betas.0")]
    assert list(labels(paths).values()) == ["optimizer.lr", "schedule.lr", "seed", "betas.0"]
    assert list(labels(paths[1:]).values()) == ["lr", "seed", "betas.0"]
    assert labels([path_of("optimizer.type")]) == {("optimizer",): "optimizer"}


def test_a_long_name_ends_in_a_hash() -> None:
    paths = [f"section.field_{index}" for index in range(30)]
    short = labels(map(path_of, paths))
    one = name_of(tuple(setting(path, 1.5) for path in paths), short)
    other = name_of(tuple(setting(path, 1.5 + (path == paths[-1])) for path in paths), short)
    assert len(one) <= MAX_NAME_LENGTH and len(other) <= MAX_NAME_LENGTH and one != other
    assert re.search(r"~[0-9a-f]{8}$", one)


def test_a_point_that_sets_nothing_has_a_name() -> None:
    assert name_of((), {}) == "base"
