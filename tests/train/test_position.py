"""Periods and durations against brute force in exact arithmetic."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.train.position import Position, is_due, is_over, share_done
from setpoint.units import Duration, Period


def positions(count: int, tokens: int, windows: int, per_step: int) -> list[Position]:
    """The positions of a run that draws `per_step` of `windows` windows at each step."""
    return [
        Position(step, step * tokens, step * per_step / windows, step * 0.25)
        for step in range(count + 1)
    ]


def fired(period: Period, run: list[Position]) -> list[int]:
    return [
        now.step for before, now in pairwise(run) if is_due(period, before, now, now is run[-1])
    ]


def expected(exact: list[Fraction], every: Fraction) -> list[int]:
    """The steps in which a multiple of `every` is reached, by listing the multiples."""
    steps: list[int] = []
    multiple = every
    for step in range(1, len(exact)):
        reached = False
        while multiple <= exact[step]:
            reached = True
            multiple += every
        if reached:
            steps.append(step)
    return steps


@given(
    st.sampled_from(["0.1", "0.2", "0.25", "0.3", "0.7", "1", "0.05", "1.5", "0.001", "3"]),
    st.integers(1, 1000),
    st.integers(1, 30),
    st.integers(1, 120),
)
def test_epochs(every: str, windows: int, per_step: int, count: int) -> None:
    """0.3 / 0.1 is below 3 in floating point; the multiple must be seen in its step anyway."""
    exact = [Fraction(step * per_step, windows) for step in range(count + 1)]
    found = fired(Period(f"{every} epochs"), positions(count, 1, windows, per_step))
    assert found == expected(exact, Fraction(every))


@given(
    st.sampled_from([("steps", 1), ("tokens", 7), ("tokens", 60), ("s", Fraction(1, 4))]),
    st.integers(1, 500),
    st.integers(1, 40),
)
def test_steps_tokens_and_seconds(unit: tuple[str, Fraction | int], every: int, count: int) -> None:
    name, per_step = unit
    period = Fraction(every, 4) if name == "s" else Fraction(every)
    run = positions(count, int(per_step) or 1, 10, 1)
    exact = [step * Fraction(per_step) for step in range(count + 1)]
    assert fired(Period(f"{float(period):g} {name}"), run) == expected(exact, period)


def test_words() -> None:
    run = positions(9, 1, 10, 1)
    assert fired(Period("last_step"), run) == [9]
    assert fired(Period("never"), run) == []


@given(
    st.sampled_from(["3 steps", "10 tokens", "0.1 epochs", "0.75 s", "0.01 min", "last_step"]),
    st.integers(1, 60),
    st.integers(0, 60),
)
def test_a_resumed_run_fires_in_the_same_steps(text: str, count: int, cut: int) -> None:
    """`is_due` sees two neighbouring positions and no more, so there is nothing to lose."""
    run = positions(count, 7, 13, 2)
    cut = min(cut, count)
    period = Period(text)
    again = [
        now.step
        for before, now in pairwise(run[cut:])
        if is_due(period, before, now, now is run[-1])
    ]
    assert again == [step for step in fired(period, run) if step > cut]


@given(
    st.sampled_from([1, 3, 20]),
    st.sampled_from(["0.1", "0.3", "1", "2.5", "0.7"]),
    st.integers(1, 150),
    st.integers(1, 60),
    st.integers(1, 7),
)
def test_the_first_limit_ends_the_run(
    steps: int, epochs: str, tokens: int, windows: int, per_step: int
) -> None:
    duration = Duration(f"{steps} steps", f"{epochs} epochs", f"{tokens} tokens")
    run = positions(200, 5, windows, per_step)
    by_hand = [
        at.step >= steps
        or Fraction(at.step * per_step, windows) >= Fraction(epochs)
        or at.step * 5 >= tokens
        for at in run
    ]
    assert [is_over(duration, at) for at in run] == by_hand


@pytest.mark.parametrize(
    ("at", "share"),
    [(Position(), 0.0), (Position(step=25), 0.25), (Position(step=25, seconds=30.0), 0.5),
     (Position(seconds=60.0), 1.0)],
)  # fmt: skip
def test_share_done_looks_at_the_nearest_limit(at: Position, share: float) -> None:
    assert share_done(Duration("100 steps", "1 min"), at) == share
    assert is_over(Duration("100 steps", "1 min"), at) == (share == 1)
