"""What users of other systems complain of, and what does not happen here.

The promises in test_sixteen.py answer most complaints; these are the rest.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import setpoint as sp
from setpoint.presets.tiny import tiny

from .. import goldens
from ..cli.conftest import CommandLine
from ..train.small import rows, snapshot


def shown(cli: CommandLine, line: str) -> dict[str, Any]:
    """A resolved configuration in plain data."""
    return json.loads(cli.ok(f"show {line} --json"))


def test_a_value_has_one_owner(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    # Defaults of the command line beat the file: a default is not a layer here.
    cli.file("exp.toml", 'extends = "small.toml"\nduration = "7 steps"\n')
    assert shown(cli, "exp.toml")["duration"] == "7 steps"
    # A flag that says the default is said all the same, and beats the file.
    assert shown(cli, "exp.toml --duration '300 steps'")["duration"] == "300 steps"
    # An ambient file never prevails, since none is read.
    for name in (".env", "default_config.yaml", "setpoint.toml", "config.toml"):
        cli.file(name, "SETPOINT__SEED=9\n" if name == ".env" else "seed = 9\n")
    assert shown(cli, "exp.toml")["seed"] == 1234
    monkeypatch.setenv("SETPOINT__DURATION", "8 steps")
    text = cli.ok("why duration exp.toml --duration '9 steps'")
    assert [line[2] for line in text.splitlines()[1:6]] == [" ", " ", " ", " ", ">"]
    # Two sources of one rank that contradict each other are an error.
    monkeypatch.setenv("SETPOINT__duration", "9 steps")
    assert "SETPOINT__DURATION" in cli.refused("check exp.toml")
    cli.file("twice.toml", 'extends = "small.toml"\nseed = 1\nseed = 2\n')
    assert "is given twice" in cli.refused("check twice.toml")


def test_old_records_load(cli: CommandLine, run: str) -> None:
    """With today's default another one than it was then."""
    with pytest.MonkeyPatch.context() as patch:
        goldens.change_default(patch, type(tiny().optimizer), "eps", 9.0)
        assert shown(cli, "small.toml")["optimizer"]["eps"] == 9.0
        assert shown(cli, run)["optimizer"]["eps"] == 1e-8  # what it was trained with


def test_the_record_alone_determines_the_run(cli: CommandLine, run: str) -> None:
    (cli.folder / "small.toml").unlink()
    assert cli(f"train {run}/config.toml --workspace again").status == 0
    (again,) = (cli.folder / "again").iterdir()
    assert again.name == Path(run).name  # the same fingerprint
    assert rows(again) == rows(cli.folder / run)  # and the same losses, to the last bit


def test_nothing_is_pickled(cli: CommandLine, run: str) -> None:
    suffixes = {path.suffix for path in (cli.folder / run).rglob("*") if path.is_file()}
    assert suffixes <= {*(".json", ".jsonl", ".toml", ".safetensors", ".log", ".html", ".txt", "")}
    for path in (cli.folder / run).rglob("*"):
        if path.is_file():
            assert not path.read_bytes().startswith((b"\x80", b"PK")), path  # pickle, torch's zip


def test_making_a_config_has_no_side_effects(cli: CommandLine) -> None:
    before = snapshot(cli.folder), dict(os.environ)
    for line in ("check small.toml", "show small.toml", "sweep small.toml --seed 1,2 --dry-run"):
        cli.ok(line)
    sp.resolve(tiny())
    assert (snapshot(cli.folder), dict(os.environ)) == before
