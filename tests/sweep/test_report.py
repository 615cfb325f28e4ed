"""Findings of many points in one report."""

from __future__ import annotations

from setpoint.config import Problem
from setpoint.sweep.points import SweepError, format_points, together


def test_what_differs_in_the_value_alone_is_one_finding() -> None:
    def problem(value: str, message: str = "is wrong") -> Problem:
        return Problem("a", message, value=value)

    found = together({"x": [problem("1")], "y": [problem("2"), problem("3", "is other")]})
    assert [(each.value, names) for each, names in found] == [("1, 2", ["x", "y"]), ("3", ["y"])]


def test_format_points() -> None:
    assert format_points(["a"], 1) == "a"
    assert format_points(["a", "b"], 2) == "both points"
    assert format_points(list("abc"), 3) == "all 3 points"
    assert format_points(list("abcdefgh"), 9) == "a; b; c; d; e; f; and 2 more"


def test_another_error_is_shown_as_it_is() -> None:
    text = "it cannot be resumed\n\n  lr\n    recorded 1\n" + "x" * 400
    error = SweepError({"a": [Problem("", text)]}, 2)
    lines = [f"  {line}" if line else "" for line in text.splitlines()]
    assert str(error).endswith("in a:\n\n" + "\n".join(lines))
    assert error.problems[0].to_json()["message"] == text
