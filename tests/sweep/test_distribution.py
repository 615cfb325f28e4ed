"""Distributions as calls and as tables, and what is wrong with some."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.config import Invalid
from setpoint.config.draft.walk import to_plain
from setpoint.config.words.plain_data import PlainScalar
from setpoint.sweep.space import Drawn, is_call, misspelt_call

from ..support.snapshots import compare


@pytest.mark.parametrize(
    ("call", "table"),
    [
        ("uniform(0, 1)", {"type": "uniform", "low": 0.0, "high": 1.0}),
        ("log_uniform(1e-5,1e-2)", {"type": "log_uniform", "low": 1e-5, "high": 1e-2}),
        ("log-uniform(high=1, low=0.1)", {"type": "log_uniform", "low": 0.1, "high": 1.0}),
        ("integer(2, 8)", {"type": "integer", "low": 2, "high": 8, "step": 1}),
        ("integer(2, 8, step=2)", {"type": "integer", "low": 2, "high": 8, "step": 2}),
        ("choice(64, [1, 2], a)", {"type": "choice", "values": [64, [1, 2], "a"]}),
    ],
)
def test_a_call_is_the_table(call: str, table: dict[str, object]) -> None:
    assert is_call(call)
    assert to_plain(Drawn.read(call).distribution) == table
    assert Drawn.read(table) == Drawn.read(call)
    assert Drawn.read(Drawn.read(call).dump()) == Drawn.read(call)


WRONG = [
    "uniform",
    "uniform(1)",
    "uniform(1, 2, 3)",
    "uniform(2, 1)",
    "uniform(1, low=2)",
    "uniform(a, 2)",
    "log_uniform(0, 1)",
    "integer(1.5, 2)",
    "integer(1, 2, step=0)",
    "integer(1, 2, pace=1)",
    "choice()",
    "normal(0, 1)",
    "uniform(0, 1",
]


def test_what_is_wrong_is_said() -> None:
    lines: list[str] = []
    for text in WRONG:
        with pytest.raises(Invalid) as caught:
            Drawn.read(text)
        at = ".".join(map(str, caught.value.at))
        valid = f" (valid: {', '.join(caught.value.valid)})" if caught.value.valid else ""
        lines.append(f"{text}: {at} {caught.value.message}{valid}".replace(":  ", ": "))
    compare("config/sweep_distributions", "\n".join(lines))


def test_choices_may_have_parameters() -> None:
    kind = Drawn.read("choice(null, smoke(steps=5, a=[1, 2]), [1, 2])").distribution
    assert kind.extremes() == ["null", "smoke(steps=5, a=[1, 2])", ["1", "2"]]


def test_misspelt_distributions() -> None:
    with pytest.raises(Invalid) as caught:
        Drawn.read("loguniform(1e-5, 1)")
    assert caught.value.hint == misspelt_call("loguniform(1e-5, 1)") == "Did you mean log_uniform?"
    assert misspelt_call("log_uniform(1e-5, 1)") == misspelt_call("smoke(steps=5)") == ""


def test_words_are_no_calls() -> None:
    assert not is_call("smoke(steps=5)")
    assert not is_call("uniform")


@given(st.fractions(0, 1).filter(lambda share: share < 1))
def test_values_lie_inside(share: Fraction) -> None:
    assert Drawn.read("integer(2, 8, 3)").distribution.at(share) in (2, 5, 8)
    assert Drawn.read("choice(a, b)").distribution.at(share) in ("a", "b")
    assert 1e-5 <= Drawn.read("log_uniform(1e-5, 1)").distribution.at(share) <= 1


def test_every_whole_number_is_reached() -> None:
    kind = Drawn.read("integer(-1, 3)").distribution
    assert {kind.at(Fraction(n, 5)) for n in range(5)} == {-1, 0, 1, 2, 3}


def test_extremes_and_description() -> None:
    kind = Drawn.read("integer(1, 8, 3)").distribution
    assert kind.extremes() == [1, 7] and kind.describe() == "integer(1, 8, 3)"
    choice = Drawn.read("choice(a, 1e-3)").distribution
    assert choice.extremes() == ["a", PlainScalar("1e-3")]
    assert choice.describe() == "choice(a, 1e-3)"
