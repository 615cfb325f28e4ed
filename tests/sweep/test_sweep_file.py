"""The table `[sweep]` of files: every kind, in every format, and what is wrong with some."""

from typing import Any

import pytest

from setpoint.config import Config, field
from setpoint.config.files.read import parse
from setpoint.sweep.sweep_file import Sweep, place_in, read_table, space_of

from ..support.snapshots import refused


class File(Config):
    sweep: Sweep = field(factory=Sweep)


def points(text: str, format: Any = "toml") -> list[dict[str, Any]]:
    document = parse(text, format, f"exp.{format}")
    table = read_table(File, document).sweep
    space = space_of(table, place_in(document), ("sweep",))
    found = [{item.key: item.plain() for item in point} for point in space.points()]
    assert len(found) == space.size()
    return found


GRID = [{"a.b": 1, "c": 3}, {"a.b": 1, "c": 4}, {"a.b": 2, "c": 3}, {"a.b": 2, "c": 4}]


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("toml", '[sweep.grid]\n"a.b" = [1, 2]\nc = [3, 4]'),
        ("yaml", "sweep:\n  grid:\n    a.b: [1, 2]\n    c: [3, 4]\n"),
        ("json", '{"sweep": {"grid": {"a.b": [1, 2], "c": [3, 4]}}}'),
    ],
)
def test_a_grid_in_every_format(format: str, text: str) -> None:
    assert points(text, format) == GRID


def test_kinds_combine() -> None:
    found = points(
        """
        [sweep]
        points = [{a.lr = 1, seed = 1}, {a.lr = 2}]
        [sweep.zip]
        x = [1, 2]
        y = ["p", "q"]
        """
    )
    assert found == [
        {"x": 1, "y": "p", "a.lr": 1, "seed": 1},
        {"x": 1, "y": "p", "a.lr": 2},
        {"x": 2, "y": "q", "a.lr": 1, "seed": 1},
        {"x": 2, "y": "q", "a.lr": 2},
    ]


def test_kinds_nest() -> None:
    found = points(
        """
        [[sweep.product]]
        zip = {a = [1, 2], b = [3, 4]}
        [[sweep.product]]
        [[sweep.product.chain]]
        grid = {c = [5]}
        [[sweep.product.chain]]
        points = [{d = 6}]
        """
    )
    assert found == [
        {"a": 1, "b": 3, "c": 5},
        {"a": 1, "b": 3, "d": 6},
        {"a": 2, "b": 4, "c": 5},
        {"a": 2, "b": 4, "d": 6},
    ]


WRONG = {
    "misspelt": "[sweep.gird]\na = [1]",
    "no list": "[sweep.grid]\na = 1\nb.c = 'x'",
    "empty": "[sweep]",
    "no values": "[sweep.grid]\na = []",
    "lengths": "[sweep.zip]\na = [1, 2]\nb = [1]",
    "point": "[sweep]\npoints = [{}, 3]",
    "random": "[sweep.random]\ncuont = 3\n"
    "[sweep.random.axes]\na = 'uniform(1)'\nb = {type = 'unifrom'}",
    "no count": "[sweep.random]\naxes = {a = 'uniform(0, 1)'}",
    "no axes": "[sweep.random]\ncount = 3",
    "nested": "[[sweep.chain]]\ngrid = {a = [1]}\n[[sweep.chain]]\ngrid = {b = 2}",
    "no table": "sweep = 3",
    "twice": "[sweep.grid]\na = [1]\n[sweep.zip]\na = [1]",
    "fields outside the grid": '[sweep]\n"a.b" = [1]\nz = 3\n[sweep.gird]\na = [1]',
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_reported_with_their_place(name: str) -> None:
    with refused():
        points(WRONG[name])


def test_places_are_found_through_dots() -> None:
    document = parse('[sweep.grid]\n"a.b" = [1]\nc.d = [2]\n', "toml", "exp.toml")
    find = place_in(document)
    assert find(("sweep", "grid", "a.b")) == "exp.toml:2:1"
    assert find(("sweep", "grid", "c.d")).startswith("exp.toml:3:")
    assert find(("sweep", "grid", "e")) == "exp.toml:1:8"
    assert find(("other",)) == "exp.toml"
