"""Files and records of an older schema, of which the tests make up a few changes."""

import os
from collections.abc import Callable

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


def test_by_default_the_diff_is_printed_and_nothing_is_written(older: CommandLine) -> None:
    older.file("exp.toml", OLD)
    before = (older.folder / "exp.toml").read_bytes()
    answer = older("migrate exp.toml")
    assert answer.status == 0
    compare("cli/migrate", f"{answer.out}\n{answer.err}")
    assert (older.folder / "exp.toml").read_bytes() == before


def test_write_rewrites_in_place_and_a_second_time_changes_nothing(older: CommandLine) -> None:
    older.file("exp.toml", OLD)
    os.chmod(older.folder / "exp.toml", 0o640)
    assert older("migrate --write exp.toml").out == f"exp.toml: now has schema {TODAY}\n"
    path = older.folder / "exp.toml"
    assert path.read_text() == (
        f"setpoint = {{schema = {TODAY}}}\n"
        '# what we run\nextends = "tiny"\n\n[optimizer]\nlr = 0.5 # high\n'
    )
    assert path.stat().st_mode & 0o777 == 0o640
    assert older.ok("check exp.toml").startswith("exp.toml: ok")
    again = path.read_bytes()
    assert f"exp.toml: nothing to change; it has schema {TODAY}" in older.ok(
        "migrate --write exp.toml"
    )
    assert path.read_bytes() == again
    assert sorted(os.listdir(older.folder)) == ["exp.toml", "own.py", "small.toml"]


def test_a_link_stays_a_link(older: CommandLine) -> None:
    older.file("real/exp.toml", OLD)
    os.symlink("real/exp.toml", older.folder / "exp.toml")
    older("migrate --write exp.toml")
    assert (older.folder / "exp.toml").is_symlink()
    assert "[optimizer]" in (older.folder / "real" / "exp.toml").read_text()


def test_an_unversioned_file_is_answered_with_what_to_do(older: CommandLine) -> None:
    older.file("exp.toml", OLD)
    message = older.refused("check exp.toml")
    assert "optim was renamed to optimizer in schema 2; run `setpoint migrate exp.toml`." in message
    assert "write optimizer.lr." in older.refused("check tiny --optim.lr 3")
    assert older.refused("check tiny --fp16").startswith("error: --fp16: fp16 was retired")


def test_all_files_are_worked_out_before_the_first_is_written(older: CommandLine) -> None:
    older.file("good.toml", OLD)
    older.file("bad.toml", "[batch]\ntokens = 'many'\n[optim]\nlr = 1\n[optimizer]\nlr = 2\n")
    message = older.refused("migrate --write good.toml bad.toml")
    assert "both optim and optimizer are set" in message


def test_what_is_refused(older: CommandLine, transcript: Callable[[list[str]], str]) -> None:
    older.file("new.toml", f"setpoint = {{schema = {TODAY + 1}}}\n")
    older.file("odd.toml", "setpoint = 3\n")
    older.file("said.toml", f"setpoint = {{schema = {TODAY}}}\n")
    older.file("broken.toml", "[optim\n")
    older.file("reference.toml", 'batch.tokens = "${batch.micro_size}"\n')
    os.mkdir(older.folder / "folder")
    lines = ["migrate", "migrate missing.toml", "migrate new.toml", "migrate odd.toml",
             "migrate --from 1 said.toml", f"migrate --from {TODAY + 1} small.toml",
             "migrate broken.toml",
             "migrate --from 1 reference.toml", "migrate folder", "migrate tiny",
             "migrate small.toml --optimizer.lr 3"]  # fmt: skip
    compare("cli/migrate_refused", transcript(lines))


def test_a_file_that_says_no_schema_may_be_told_one(older: CommandLine) -> None:
    older.file("exp.toml", "[batch]\ntokens = 3\n")
    assert "nothing to change" in older("migrate exp.toml").out
    assert "+tokens = 6" in older("migrate --from 1 exp.toml").out
