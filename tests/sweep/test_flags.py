"""A command line of a sweep: what is an axis, what stays an override, and what is refused."""

from typing import Any

import pytest

from setpoint.config import Config, field, resolve
from setpoint.config.layers.editor import Editor
from setpoint.sweep.points import read_command_line
from setpoint.sweep.setting import SOURCE, WITH, axis_origin

from ..support.snapshots import refused
from .space_sample import Root


def test_axes_and_overrides_are_told_apart() -> None:
    line = read_command_line(
        Root, "a,b", ["x", "null,y"], ["--seed", "1,2", "size=4", "--rule.lr", "uniform(0, 1)"]
    )
    assert [axis.path for axis in line.axes] == [(SOURCE,), (WITH,), ("seed",)]
    assert line.source is None and line.modifiers == ["x", None]
    assert list(line.fixed) == [("size",)]
    assert list(line.drawn) == [("rule", "lr")]


def test_a_file_with_a_comma_is_one_source(tmp_path: object) -> None:
    path = f"{tmp_path}/a,b.toml"
    with open(path, "w") as file:
        file.write("")
    assert read_command_line(Root, path, [], []).source == path


class Loose(Config):
    any: Any = None
    text: str | list[str] = ""
    items: list[Any] = field(factory=list)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["--any", "[1, 2],[3]"], [(1, 2), (3,)]),
        (["--any", "1,{a: 2}"], [1, {"a": 2}]),
        (["--text", "[a, b],c"], [["a", "b"], "c"]),
        (["--text", "a,b"], ["a", "b"]),
        (["--items", "[1],[{a: 2}]"], [[1], [{"a": 2}]]),
        (["--items.append", "[1],2"], [[(1,)], [2]]),
    ],
)
def test_values_of_points_are_data_like_those_of_flags(
    words: list[str], values: list[object]
) -> None:
    (axis,) = read_command_line(Loose, "x", [], words).axes
    found: list[object] = []
    for value in axis.values:
        editor = Editor(Loose())
        editor.set(axis.path, value, axis_origin(words[0]))
        found.append(getattr(resolve(editor.root, problems=editor.problems), axis.path[0]))
    assert found == values


@pytest.mark.parametrize(
    "words",
    [
        "--seed 1,2,", "--seed 1,2 --seed 3,4", "--seed 1,2 --seed 3",
        "--rule.lr uniform(0,1) --rule.lr 3", "--rule.lr uniform(0,1) --rule.lr uniform(0,2)",
        "--rule.lr uniform(1,0)", "--widths 1,2", "--seed", "seed",
    ],
)  # fmt: skip
def test_wrong_axes_are_refused(words: str) -> None:
    with refused():
        read_command_line(Root, "defaults", [], words.split())
