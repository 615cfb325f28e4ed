"""What the tests of dialects share: the job that a file means, its rates, and what is reported."""

from collections.abc import Callable
from typing import Any

import pytest

from setpoint.config import compose
from setpoint.interop.dialect import ConvertedDocument
from setpoint.plan.curve import draw_curve
from setpoint.train.config import Job


def job_of(document: ConvertedDocument, ranks: int = 1, *flags: str) -> Job:
    """The job that a file without problems means at a number of ranks."""
    assert document.problems == []
    given = [f"--parallel.world_size={ranks}", *flags]
    return compose(Job, None, files=[document], flags=given).resolve()


def assert_rates(job: Job, factor: Callable[[int], float], tolerance: float = 1e-12) -> None:
    """Compare the share of the peak rate at each step, counted from 0."""
    for point in draw_curve(job, None, 1, 1000).points:
        assert point.factor == pytest.approx(factor(point.step), abs=tolerance), point


def assert_values(data: Any, values: dict[str, Any]) -> None:
    """Compare values in nested tables and lists by their dotted paths."""
    for path, expected in values.items():
        value = data
        for name in path.split("."):
            value = value[int(name) if isinstance(value, list) else name]
        near = pytest.approx(expected) if isinstance(expected, float) else expected
        assert value == near, path


def kinds(document: ConvertedDocument) -> dict[str, str]:
    """How each key that is reported differs."""
    return {report.key: report.kind for report in document.reports}
