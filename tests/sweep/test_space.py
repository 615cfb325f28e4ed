"""The kinds of sweeps against itertools, and their sizes against counting."""

import itertools
import statistics
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.config import Invalid
from setpoint.config.draft.walk import to_plain
from setpoint.config.words.plain_data import PlainScalar
from setpoint.sweep.setting import axis_origin, path_of, point_value, split_points
from setpoint.sweep.space import (
    Axis,
    Drawn,
    Product,
    RandomPoints,
    Space,
    draw,
    is_call,
    linear,
    logarithmic,
    misspelt_call,
)

from ..support.snapshots import refused


def axis(path: str, values: Sequence[object]) -> Axis:
    return Axis(path_of(path), values, axis_origin(path))


def plain(space: Space) -> list[dict[str, Any]]:
    return [{item.key: item.plain() for item in point} for point in space.points()]


AXES = st.lists(st.lists(st.integers(), min_size=1, max_size=4), max_size=4)


@given(AXES)
def test_a_grid_is_the_product(axes: list[list[int]]) -> None:
    names = [f"axis_{index}" for index in range(len(axes))]
    grid = Product([axis(name, values) for name, values in zip(names, axes, strict=True)])
    expected = [dict(zip(names, row, strict=True)) for row in itertools.product(*axes)]
    assert plain(grid) == expected
    assert grid.size() == len(expected)
    assert list(grid.paths) == [(name,) for name in names]


def random(count: int, seed: int, **axes: str) -> RandomPoints:
    drawn = {(k,): (Drawn.read(text).distribution, axis_origin(k)) for k, text in axes.items()}
    return RandomPoints(drawn, count, seed)


def test_random_points_are_the_same_everywhere() -> None:
    space = random(3, 7, lr="log_uniform(1e-5, 1e-2)", p="uniform(0, 1)", n="integer(1, 9)")
    # Written down once: another machine, process or version of Python must give these.
    assert plain(space) == EXPECTED
    assert space.size() == 3


EXPECTED: list[dict[str, Any]] = [
    {"lr": 0.0056708, "p": 0.74173, "n": 8},
    {"lr": 0.0030105, "p": 0.99426, "n": 3},
    {"lr": 0.0012733, "p": 0.66229, "n": 8},
]


def test_more_points_and_more_axes_leave_the_others_alone() -> None:
    few = plain(random(5, 1, a="uniform(0, 1)"))
    many = plain(random(9, 1, b="integer(0, 5)", a="uniform(0, 1)"))
    assert [point["a"] for point in many[:5]] == [point["a"] for point in few]
    assert plain(random(5, 2, a="uniform(0, 1)")) != few


# Distributions as calls and as tables, and what is wrong with some.


@pytest.mark.parametrize(
    ("call", "table"),
    [
        ("log_uniform(1e-5,1e-2)", {"type": "log_uniform", "low": 1e-5, "high": 1e-2}),
        ("log-uniform(high=1, low=0.1)", {"type": "log_uniform", "low": 0.1, "high": 1.0}),
        ("integer(2, 8, step=2)", {"type": "integer", "low": 2, "high": 8, "step": 2}),
        ("choice(64, [1, 2], a)", {"type": "choice", "values": [64, [1, 2], "a"]}),
    ],
)
def test_a_call_is_the_table(call: str, table: dict[str, object]) -> None:
    assert is_call(call)
    assert to_plain(Drawn.read(call).distribution) == table
    assert Drawn.read(table) == Drawn.read(call)
    assert Drawn.read(Drawn.read(call).dump()) == Drawn.read(call)


@pytest.mark.parametrize(
    "text",
    [
        "uniform", "uniform(1, 2, 3)", "uniform(2, 1)", "uniform(a, 2)", "log_uniform(0, 1)",
        "integer(1, 2, step=0)", "integer(1, 2, pace=1)", "choice()", "normal(0, 1)",
        "uniform(0, 1", "loguniform(1e-5, 1)",
    ],
)  # fmt: skip
def test_wrong_distributions_are_refused(text: str) -> None:
    with refused(Invalid):
        Drawn.read(text)


def test_misspelt_distributions_are_answered_with_the_nearest() -> None:
    assert misspelt_call("loguniform(1e-5, 1)") == "Did you mean log_uniform?"
    assert misspelt_call("log_uniform(1e-5, 1)") == misspelt_call("smoke(steps=5)") == ""


@given(st.fractions(0, 1).filter(lambda share: share < 1))
def test_drawn_values_lie_inside(share: Fraction) -> None:
    assert Drawn.read("integer(2, 8, 3)").distribution.at(share) in (2, 5, 8)
    assert Drawn.read("choice(a, b)").distribution.at(share) in ("a", "b")
    assert 1e-5 <= Drawn.read("log_uniform(1e-5, 1)").distribution.at(share) <= 1


def test_distributions_name_their_ends() -> None:
    every = Drawn.read("integer(-1, 3)").distribution
    assert {every.at(Fraction(n, 5)) for n in range(5)} == {-1, 0, 1, 2, 3}
    kind = Drawn.read("integer(1, 8, 3)").distribution
    assert kind.extremes() == [1, 7] and kind.describe() == "integer(1, 8, 3)"
    choice = Drawn.read("choice(a, 1e-3)").distribution
    assert choice.extremes() == ["a", PlainScalar("1e-3")]
    assert choice.describe() == "choice(a, 1e-3)"


# Draws: inside their limits, spread as they should be, and free of the machine.


SHARES = st.fractions(0, 1)


def test_draws_do_not_depend_on_one_another() -> None:
    assert draw(0, 1, "lr") != draw(1, 0, "lr") != draw(0, 1, "rl")
    shares = [float(draw(0, index, "lr")) for index in range(1000)]
    assert abs(statistics.mean(shares) - 0.5) < 0.03


@given(SHARES, st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_linear_stays_inside(share: Fraction, low: float, width: float) -> None:
    high = low + width
    assert low <= linear(share, low, high) <= high


@given(SHARES, st.floats(1e-300, 1e300), st.floats(1.001, 1e9))
def test_logarithmic_stays_inside(share: Fraction, low: float, factor: float) -> None:
    high = min(low * factor, 1e305)
    assert low <= logarithmic(share, low, high) <= high


def test_the_ends_and_the_middle() -> None:
    assert [linear(Fraction(n, 2), 1.0, 3.0) for n in range(3)] == [1.0, 2.0, 3.0]
    assert [logarithmic(Fraction(n, 2), 1e-4, 1e-2) for n in range(3)] == [1e-4, 1e-3, 1e-2]


# Commas separate points, unless they stand inside something.


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (" a , b ", ["a", "b"]),
        ("[1,2],[3,4]", ["[1,2]", "[3,4]"]),
        ("smoke(steps=5, a=1),tiny", ["smoke(steps=5, a=1)", "tiny"]),
        ("${a * 2},${min(b, c)}", ["${a * 2}", "${min(b, c)}"]),
        ('"a,b",c', ['"a,b"', "c"]),
        (r'"a\",b",c', [r'"a\",b"', "c"]),
        ("don't,stop", ["don't", "stop"]),
        ("a,", ["a", ""]),
        # What is not closed is left to the reader of the value, which says so.
        ("[1,2", ["[1,2"]),
        ('"a,b', ['"a', "b"]),
    ],
)
def test_values_are_split_at_commas(text: str, parts: list[str]) -> None:
    assert split_points(text) == parts


def test_quotes_make_a_text_and_other_values_stay_to_be_read() -> None:
    assert point_value('"a,b"') == "a,b"
    assert not isinstance(point_value('"1"'), PlainScalar)
    assert isinstance(point_value("1"), PlainScalar)
    with refused():
        point_value("")


@given(st.lists(st.text("abc019.-_", min_size=1), min_size=2))
def test_joined_words_are_split_as_they_were(words: list[str]) -> None:
    assert split_points(",".join(words)) == words


def test_a_long_text_is_split_in_no_time() -> None:
    assert split_points("'" * 100_000 + ",a" * 2)[-1] == "a"
    assert len(split_points("x," * 50_000)) == 50_001
