"""Numbers as people read them."""

from __future__ import annotations

import io
import math

import pytest

from setpoint.track.console import is_terminal, short_count, short_time


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"), (7, "7"), (950, "950"), (999, "999"), (999.6, "1.00k"), (1000, "1.00k"),
        (16_149, "16.1k"), (99_960, "100k"), (999_499, "999k"), (999_600, "1.00M"),
        (1_250_000, "1.25M"), (2e15, "2000T"), (0.5, "0.5"), (12.345, "12.3"), (-1500, "-1.50k"),
        (math.inf, "inf"),
    ],
)  # fmt: skip
def test_counts(count: float, text: str) -> None:
    assert short_count(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"), (42.4, "0:42"), (59.6, "1:00"), (3599.7, "1:00:00"), (3909, "1:05:09"),
        (3 * 86400 + 4 * 3600, "3d 4:00:00"), (86400 + 5, "1d 0:00:05"), (-1, "0:00"),
        (math.inf, "?"), (math.nan, "?"),
    ],
)  # fmt: skip
def test_times(seconds: float, text: str) -> None:
    assert short_time(seconds) == text


def test_a_closed_stream_is_no_terminal() -> None:
    stream = io.StringIO()
    assert not is_terminal(stream)
    stream.close()
    assert not is_terminal(stream)
