"""Periods, durations and lengths."""

import pickle

import pytest

from setpoint.config import Invalid
from setpoint.config.values.reference import evaluate, parse
from setpoint.units import Duration, Length, Period

from ..support.snapshots import refused


@pytest.mark.parametrize(
    ("text", "count", "unit", "dump"),
    [
        (100, 100, "steps", "100 steps"),
        ("1 step", 1, "steps", "1 step"),
        ("1e3 steps", 1000, "steps", "1000 steps"),
        ("0.25 epochs", 0.25, "epochs", "0.25 epochs"),
        (".5 epoch", 0.5, "epochs", "0.5 epochs"),
        ("2.0 epochs", 2, "epochs", "2 epochs"),
        ("1e9 tokens", 10**9, "tokens", "1000000000 tokens"),
        ("9007199254740993 tokens", 2**53 + 1, "tokens", "9007199254740993 tokens"),
        ("10 min", 600.0, "seconds", "10 min"),
        ("1 day", 86400.0, "seconds", "24 h"),
        ("0.5 s", 0.5, "seconds", "0.5 s"),
        ("5e-324 s", 5e-324, "seconds", "5e-324 s"),
        ("never", 0, "never", "never"),
        ("last_step", 0, "last_step", "last_step"),
    ],
)
def test_periods_are_read_and_written(text: str | int, count: float, unit: str, dump: str) -> None:
    period = Period(text)
    assert (period.count, period.unit, period.dump(), str(period)) == (count, unit, dump, dump)
    assert type(period.count) is type(count)
    assert Period(period.dump()) == period
    assert hash(Period(period.dump())) == hash(period)
    assert repr(period) == f"Period({dump!r})"
    assert pickle.loads(pickle.dumps(period)) == period


@pytest.mark.parametrize(
    "value",
    [
        "",
        "0 steps",
        "1e400 tokens",
        "1.5 steps",
        "1.0",  # a share, not one step
        "3 parsecs",
        "9" * 5000,
        pytest.param(10**5000, id="huge"),
        True,
        1.5,
    ],
)
def test_values_that_are_no_periods_are_refused(value: object) -> None:
    with refused(Invalid):
        Period.read(value)


def test_durations_are_read_and_written() -> None:
    both = Duration("30 min", "300 steps")
    assert [(limit.count, limit.unit) for limit in both.limits] == [
        (300, "steps"),
        (1800.0, "seconds"),
    ]
    assert both.dump() == ["300 steps", "30 min"]
    assert both == Duration("300", "1800 s") == Duration.read("[300 steps, 0.5 h]")
    assert hash(both) == hash(Duration("300", "1800 s"))
    assert str(both) == "300 steps or 30 min"
    assert repr(both) == "Duration('300 steps', '30 min')"
    assert (both.in_unit("steps"), both.in_unit("epochs")) == (300, None)
    assert Duration.read(both) is both
    assert pickle.loads(pickle.dumps(both)) == both


@pytest.mark.parametrize(
    "value",
    [
        [], ["3 steps", "4 steps"], [True], "3 parsecs", "[3", "never",
    ],
)  # fmt: skip
def test_values_that_are_no_durations_are_refused(value: object) -> None:
    with refused(Invalid):
        Duration.read(value)


def test_every_word_for_a_time() -> None:
    words = {
        1.0: ("s", "sec", "second", "seconds"),
        60.0: ("min", "minute", "minutes"),
        3600.0: ("h", "hour", "hours"),
        86400.0: ("day", "days"),
    }
    for seconds, names in words.items():
        for name in names:
            assert Period(f"2 {name}").count == 2 * seconds, name


@pytest.mark.parametrize(
    ("text", "count", "unit", "share", "dump"),
    [
        (0, 0, "steps", None, "0 steps"),
        ("0 epochs", 0, "steps", None, "0 steps"),
        ("0.5 epochs", 0.5, "epochs", None, "0.5 epochs"),
        ("90 s", 90.0, "seconds", None, "90 s"),
        ("5%", 5.0, "%", 0.05, "5 %"),
        ("33.3 %", 33.3, "%", 0.333, "33.3 %"),
    ],
)
def test_lengths_are_read_and_written(text, count, unit, share, dump):
    length = Length(text)
    assert (length.count, length.unit, length.share) == (count, unit, share)
    assert str(length) == length.dump() == dump and Length.read(dump) == length
    assert bool(length) == (count > 0)


@pytest.mark.parametrize("share", [0.05, 0.07, 1 / 3, 1e-7, 1.0])
def test_a_length_of_a_share_is_exact(share):
    assert Length.of_share(share).share == share


@pytest.mark.parametrize("text", [0.05, True, "0.05", "101 %", "-1", "5 percent", None, 2**63])
def test_values_that_are_no_lengths_are_refused(text):
    with refused(Invalid):
        Length.read(text)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("whole // 10", Length(60)),
        ("whole * 0.07", Length(42)),
        ("whole - part - 5", Length(585)),
        ("whole / part", 60.0),
        ("half_hour / 2", Length("15 min")),
        ("epochs * 2", Length("1 epochs")),
    ],
)
def test_lengths_take_arithmetic(expression, value):
    assert evaluate(parse(expression), lambda path: VALUES[path[0]]) == value


@pytest.mark.parametrize(
    "expression", ["whole * part", "whole + epochs", "2 / whole", "several // 2", "whole ** 2"]
)
def test_other_arithmetic_is_refused(expression):
    with refused(Invalid):
        evaluate(parse(expression), lambda path: VALUES[path[0]])


VALUES = {
    "whole": Duration(600), "part": Length(10), "half_hour": Duration("30 min"),
    "epochs": Length("0.5 epochs"), "several": Duration("5 steps", "2 epochs"),
}  # fmt: skip
