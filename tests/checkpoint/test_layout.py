"""Names in a `checkpoints/` directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from setpoint.checkpoint.layout import (
    aside,
    directory_name,
    list_checkpoints,
    step_of,
    temporary,
    unfinished,
)


@pytest.mark.parametrize("step", [0, 1, 99_999_999, 100_000_000, 12_345_678_901])
def test_names_and_steps(step: int) -> None:
    assert step_of(directory_name(step)) == step


@pytest.mark.parametrize(
    "name",
    [
        "step-1",
        "step-000000001",
        "step-00000001.tmp-1",
        "latest",
        "step-\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0661",
        "",
    ],
)
def test_other_names(name: str) -> None:
    assert step_of(name) is None


def test_order_is_by_number(tmp_path: Path) -> None:
    for step in (100_000_000, 99_999_999, 5):
        (tmp_path / directory_name(step)).mkdir()
    assert list(list_checkpoints(tmp_path)) == [5, 99_999_999, 100_000_000]


def test_a_checkpoint_set_aside_is_found_until_its_name_is_taken(tmp_path: Path) -> None:
    old = aside(tmp_path, directory_name(5), 42)
    old.mkdir()
    temporary(tmp_path, directory_name(6), 42).mkdir()
    assert list_checkpoints(tmp_path) == {5: old}
    new = tmp_path / directory_name(5)
    new.mkdir()
    assert list_checkpoints(tmp_path) == {5: new}
    assert [(u.target, u.kind, u.pid) for u in unfinished(tmp_path)] == [
        ("step-00000005", "old", 42),
        ("step-00000006", "tmp", 42),
    ]
