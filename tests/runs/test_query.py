"""Conditions on runs, held against Python's own expressions."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.config import ABSENT, SetpointError
from setpoint.runs.query import parse

from ..support.snapshots import refused

RUN: dict[str, Any] = {
    "optimizer.lr": 3e-4, "optimizer": "adamw", "duration": "100 steps", "tags": ["base", "b2"],
    "deterministic": False, "seed": 1234, "val.loss": 1.5, "note": "diverged, badly", "loss": None,
}  # fmt: skip


def test_names_in_a_condition_are_known() -> None:
    assert parse("a.b > 1 and (c = 2 or a.b < 0)").names == ("a.b", "c")


def holds(text: str) -> bool:
    return parse(text).holds(lambda name: RUN.get(name, ABSENT))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("optimizer.lr>1e-4 and val.loss<1.2", False),
        ("optimizer.lr > 1e-4 and val.loss < 1.6", True),
        ("optimizer = adamw", True),
        ("optimizer == 'adam'", False),
        ("not optimizer = adamw or seed >= 1234", True),
        ("not (optimizer = adamw or seed >= 1234)", False),
        ("duration > 99 and duration <= 100", True),
        ("duration = '100 steps'", True),
        ("tags ~ base", True),
        ("tags ~ 'b?'", True),
        ("tags ~ 'c*'", False),
        ("note ~ badly", True),
        ("deterministic = false", True),
        ("deterministic = 0", False),
        ("loss = null", True),
        ("loss < 3", False),
        ("nothing < 3", False),
        ("nothing = 3", False),
        ("nothing != 3", True),
        ("seed != 1234", False),
    ],
)
def test_conditions_hold_or_do_not(text: str, expected: bool) -> None:
    assert holds(text) is expected


TRUTHS = st.sampled_from(("seed = 1234", "seed = 1"))


@given(
    st.recursive(
        TRUTHS,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from((" and ", " or ")), inner).map("".join),
            inner.map(lambda text: f"not ({text})"),
            inner.map(lambda text: f"({text})"),
        ),
    )
)
def test_words_bind_as_in_python(text: str) -> None:
    assert holds(text) is eval(text.replace("=", "=="), {"seed": 1234})


@pytest.mark.parametrize(
    "text",
    ["", "lr >", "lr 3", "(lr > 3", "lr > 3 lr < 4", "lr > 3 4", "lr > 'abc", "lr > 3 and",
     "1 < lr < 2", "'lr' > 3", "lr", "not lr ~ 3 !", "lr not ~ 3", "f(lr > 3)"],
)  # fmt: skip
def test_what_cannot_be_read_is_shown(text: str) -> None:
    with refused():
        parse(text)


def test_nested_conditions_are_bounded() -> None:
    with pytest.raises(SetpointError):
        parse("(" * 9999)
