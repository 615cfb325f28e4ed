"""Values of `resilience.time_limit`: times, which other periods are not."""

from __future__ import annotations

import re

import pytest

from setpoint.config import Invalid
from setpoint.resilience.config import TIMES, TimeLimit
from setpoint.units import Length, Period


@pytest.mark.parametrize(
    "value", ["abc", "100 steps", "last_step", 5, True, None, [1], Length("0")]
)
def test_what_is_no_time_is_answered_with_times_alone(value: object) -> None:
    with pytest.raises(Invalid) as raised:
        TimeLimit.read(value)
    assert raised.value.valid == TIMES
    assert all(TimeLimit.read(each) for each in TIMES)


def test_a_value_of_another_kind_is_named() -> None:
    with pytest.raises(Invalid, match="is not a time limit: got 0.5"):
        TimeLimit.read(0.5)


@pytest.mark.parametrize("value", ["90 min", Period("90 min"), Length("5400 s")])
def test_times_are_read_from_all_quantities(value: object) -> None:
    limit = TimeLimit.read(value)
    assert (limit.count, limit.unit, str(limit)) == (5400.0, "seconds", "90 min")
    assert TimeLimit.read(limit) is limit


def test_its_schema_takes_times_alone() -> None:
    pattern = re.compile(TimeLimit.__setpoint_json_schema__["pattern"])
    assert all(pattern.search(each) for each in (*TIMES, "1.5h"))
    assert not any(pattern.search(each) for each in ("100 steps", "last_step", "90", "abc"))
