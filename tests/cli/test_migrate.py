"""Files and records of an older schema, of which the tests make up a few changes."""

import os

import pytest

from setpoint.config.migrations import Added, Converted, Renamed, Retired
from setpoint.train.config import Job

from ..support.snapshots import compare
from .conftest import CommandLine

TODAY = 2
OLD = """\
# what we run
extends = "tiny"
fp16 = true  # faster

[optim]
lr = 0.5 # high
"""


@pytest.fixture
def older(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line of a Setpoint of schema 2, whose schema 1 had fields of other names."""
    operations = (
        Renamed("optim", "optimizer"),
        Retired("fp16", "use precision.compute"),
        Converted("batch.tokens", lambda n: n * 2, "counts both halves"),
        Added("silence", []),
    )
    for operation in operations:
        operation.schema = 2
    table = {__name__: {TODAY: operations}}
    monkeypatch.setattr("setpoint.config.migrations._declared", table)
    for name, value in (("schema", TODAY), ("migrations", __name__)):
        monkeypatch.setattr(Job.__setpoint__, name, value)
    return cli


def test_the_changes_to_a_file_are_printed_and_nothing_is_written(older: CommandLine) -> None:
    older.file("exp.toml", OLD)
    before = (older.folder / "exp.toml").read_bytes()
    answer = older("migrate exp.toml")
    assert answer.status == 0
    compare("cli/migrate", f"{answer.out}\n{answer.err}")
    # Nor with --write, which is for records.
    older.refused("migrate --write . exp.toml")
    assert (older.folder / "exp.toml").read_bytes() == before


def test_an_unversioned_file_is_answered_with_what_to_do(older: CommandLine) -> None:
    older.file("exp.toml", OLD)
    older.refused("check exp.toml")
    older.refused("check tiny --optim.lr 3")
    older.refused("check tiny --fp16")


def test_files_that_cannot_be_migrated_are_refused(older: CommandLine) -> None:
    older.file("new.toml", f"setpoint = {{schema = {TODAY + 1}}}\n")
    older.file("bad.toml", "[optim]\nlr = 1\n[optimizer]\nlr = 2\n")
    older.file("odd.toml", "setpoint = 3\n")
    older.file("said.toml", f"setpoint = {{schema = {TODAY}}}\n")
    older.file("broken.toml", "[optim\n")
    older.file("reference.toml", 'batch.tokens = "${batch.micro_size}"\n')
    os.mkdir(older.folder / "folder")
    lines = ["migrate", "migrate missing.toml", "migrate new.toml", "migrate odd.toml",
             "migrate bad.toml",
             "migrate --from 1 said.toml", f"migrate --from {TODAY + 1} small.toml",
             "migrate broken.toml",
             "migrate --from 1 reference.toml", "migrate folder", "migrate tiny",
             "migrate small.toml --optimizer.lr 3"]  # fmt: skip
    for line in lines:
        older.refused(line)


def test_a_file_that_says_no_schema_may_be_told_one(older: CommandLine) -> None:
    older.file("exp.toml", "[batch]\ntokens = 3\n")
    assert "nothing to change" in older("migrate exp.toml").out
    assert "exp.toml:2:1: batch.tokens = 6\n" in older("migrate --from 1 exp.toml").out
    older.file("exp.yaml", "optim:\n  lr: 3\n")
    assert 'exp.yaml: "setpoint": {"schema": 2}\n' in older("migrate exp.yaml").out
