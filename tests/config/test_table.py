from __future__ import annotations

from pathlib import Path

from setpoint.config import IDENTITY, Role, resolve
from setpoint.config.record.record import (
    Entry,
    Table,
    compare,
    leaf_table,
    record_files,
    recorded_table,
)

from .helpers import resolved
from .sample import Job


def entries(role: Role = IDENTITY, **values: object) -> Table:
    return {path: Entry(value, "here", role) for path, value in values.items()}


def test_a_record_has_the_table_of_its_config(tmp_path: Path) -> None:
    folder = tmp_path
    config = resolved("--optimizer.clip_norm=inf", "--user.a.b=1", "--sources=[]")
    for name, text in record_files(config).items():
        (folder / name).write_text(text)
    table, notes = recorded_table(Job, str(folder))
    assert notes == []
    assert compare([leaf_table(config), table]) == []
    assert list(table) == list(leaf_table(config))
    different = compare([leaf_table(resolve(Job())), table])
    assert [row.path for row in different] == [
        "optimizer.clip_norm", "sources.0.type", "sources.0.weight", "sources.0.documents",
        "sources.0.length", "sources", "user.a.b",
    ]  # fmt: skip


def test_rows_keep_the_order_of_the_tables() -> None:
    one = entries(a=1, c=3, e=5)
    two = entries(a=2, b=2, c=4, d=4)
    three = entries(d=9, f=1, a=1)
    assert [row.path for row in compare([one, two])] == ["a", "b", "c", "e", "d"]
    assert sorted(row.path for row in compare([one, two, three])) == list("abcdef")


def test_one_that_differs_is_enough() -> None:
    same = entries(a=1, b=None)
    assert compare([same, same, entries(a=1, b=None)]) == []
    (row,) = compare([same, same, entries(a=True, b=None)])
    assert [entry and entry.value for entry in row.entries] == [1, 1, True]
    (row,) = compare([same, entries(a=1), same])
    assert row.entries[1] is None


def test_a_section_can_be_left_out() -> None:
    one, two = {"a.b": Entry(1, "", IDENTITY), "ab": Entry(1, "", IDENTITY)}, entries(ab=2)
    assert [row.path for row in compare([one, two], ignore=["a"])] == ["ab"]
