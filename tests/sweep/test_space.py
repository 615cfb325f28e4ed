"""The kinds of sweeps against itertools, and their sizes against counting."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.config import SetpointError
from setpoint.sweep.setting import Setting, axis_origin, path_of
from setpoint.sweep.space import Axis, Chained, Drawn, Listed, Product, RandomPoints, Space, Zip


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


@given(AXES)
def test_the_order_of_values_changes_the_order_of_points_only(axes: list[list[int]]) -> None:
    def keys(rows: list[list[int]]) -> list[str]:
        grid = Product([axis(f"axis_{at}", values) for at, values in enumerate(rows)])
        return sorted(str(point) for point in plain(grid))

    assert keys(axes) == keys([values[::-1] for values in axes])


def test_kinds_nest() -> None:
    pairs = Zip([axis("a", [1, 2]), axis("b", [3, 4])])
    rows = Listed(
        [(Setting(("c",), 5, axis_origin("c")),), (Setting(("d",), 6, axis_origin("d")),)]
    )
    space = Chained([Product([pairs, rows]), axis("a", [7])])
    assert space.size() == 5
    assert plain(space) == [
        {"a": 1, "b": 3, "c": 5},
        {"a": 1, "b": 3, "d": 6},
        {"a": 2, "b": 4, "c": 5},
        {"a": 2, "b": 4, "d": 6},
        {"a": 7},
    ]


def test_a_size_is_known_without_making_points() -> None:
    space = Product([axis(f"a{index}", range(1000)) for index in range(200)])
    assert space.size() == 1000**200


def test_one_field_is_set_once() -> None:
    with pytest.raises(SetpointError, match=r"a is set by two parts of the sweep: sweep axis a"):
        Product([axis("a", [1]), Zip([axis("a", [2])])])


def test_a_zip_needs_equal_lengths() -> None:
    with pytest.raises(SetpointError, match=r"a has 2, b has 3"):
        Zip([axis("a", [1, 2]), axis("b", [1, 2, 3])])


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
