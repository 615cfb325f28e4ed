"""A command line of a sweep: what is an axis, what stays an override, and what is refused."""

from __future__ import annotations

import pytest

from setpoint.config import SetpointError
from setpoint.sweep_space.flags import joined, read_command_line
from setpoint.sweep_space.setting import SOURCE, WITH

from ..snapshots import compare
from .sample import Root


def test_axes_and_overrides_are_told_apart() -> None:
    line = read_command_line(
        Root, "a,b", ["x", "null,y"], ["--seed", "1,2", "size=4", "--rule.lr", "uniform(0, 1)"]
    )
    assert [axis.path for axis in line.axes] == [(SOURCE,), (WITH,), ("seed",)]
    assert line.source is None and line.modifiers == ["x", None]
    assert list(line.fixed) == [("size",)]
    assert list(line.drawn) == [("rule", "lr")]


def test_one_source_is_the_source() -> None:
    line = read_command_line(Root, "tiny(width=1, depth=2)", [], [])
    assert line.source == "tiny(width=1, depth=2)" and not line.axes


def test_a_file_with_a_comma_is_one_source(tmp_path: object) -> None:
    path = f"{tmp_path}/a,b.toml"
    with open(path, "w") as file:
        file.write("")
    assert read_command_line(Root, path, [], []).source == path


def test_switches_get_their_points() -> None:
    assert joined(["--fast", "true,false", "--fast", "--seed", "1"]) == [
        "--fast=true,false",
        "--fast",
        "--seed",
        "1",
    ]


WRONG = [
    ["--seed", "1,2,"],
    ["--seed", "1,2", "--seed", "3,4"],
    ["--seed", "1,2", "--seed", "3"],
    ["--rule.lr", "uniform(0, 1)", "--rule.lr", "3"],
    ["--rule.lr", "uniform(0, 1)", "--rule.lr", "uniform(0, 2)"],
    ["--rule.lr", "uniform(1, 0)"],
    ["--widths", "1,2"],
    ["--seed"],
    ["seed"],
]


def test_what_is_refused() -> None:
    lines: list[str] = []
    for tokens in WRONG:
        with pytest.raises(SetpointError) as caught:
            read_command_line(Root, "defaults", [], tokens)
        lines.append(f"{' '.join(tokens)}\n  {caught.value}")
    compare("config/sweep_flags", "\n".join(lines))


@pytest.mark.parametrize("text", ["[1],[2]", "[1,2]", "null,[1]", "${a},${b}"])
def test_lists_in_brackets_are_points(text: str) -> None:
    line = read_command_line(Root, "defaults", [], ["--widths", text])
    assert len(line.axes) == (text != "[1,2]")
