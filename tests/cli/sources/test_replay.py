from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import setpoint
import setpoint.config
from setpoint.cli.sources.replay import ERROR, FAILED, main

from ..conftest import CommandLine


def replay(folder: Path, source: str, *imports: str) -> int:
    folder.mkdir(exist_ok=True)
    return main({"source": source, "imports": list(imports), "folder": str(folder)})


def test_the_record_of_a_source(cli: CommandLine) -> None:
    folder = cli.folder / "out"
    assert replay(folder, "small.toml") == 0
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "origins.json",
        "config.toml",
    }
    assert json.loads((folder / "config.json").read_text())["name"] == "small"
    assert cli.ok("fingerprint out") == cli.ok("fingerprint small.toml")


@pytest.mark.parametrize(
    ("source", "imports", "expected"),
    [
        ("nosuch.toml", (), "nosuch.toml: no such file"),
        ("tiny", ("no_such_module",), "ModuleNotFoundError: No module named 'no_such_module'"),
        ("tiny", ("leaves",), "SystemExit: 3"),
    ],
)
def test_words_instead_of_a_record(
    cli: CommandLine, source: str, imports: tuple[str, ...], expected: str
) -> None:
    cli.file("leaves.py", "raise SystemExit(3)\n")
    folder = cli.folder / "out"
    assert replay(folder, source, *imports) == FAILED
    assert (folder / ERROR).read_text() == expected


def _forget_records(patch: pytest.MonkeyPatch) -> None:
    """Make the package one that has no records."""
    for module in (setpoint, setpoint.config):
        patch.delitem(vars(module), "record_files", raising=False)
    patch.setitem(sys.modules, "setpoint.config.record.record", None)


def test_a_revision_that_can_do_neither(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    _forget_records(monkeypatch)
    monkeypatch.setitem(sys.modules, "setpoint.cli.main", None)
    folder = cli.folder / "out"
    assert replay(folder, "small.toml") == FAILED
    assert (folder / ERROR).read_text() == "it can neither record a configuration nor show one"


def test_a_revision_that_can_only_show(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        _forget_records(patch)
        folder = cli.folder / "out"
        assert replay(folder, "small.toml") == 0
        chains = json.loads((folder / "origins.json").read_text())
        assert chains["optimizer.lr"]["layers"][-1] == {
            "layer": "small.toml:15:1", "origin": "small.toml:15:1", "value": 0.01,
        }  # fmt: skip
        assert replay(cli.folder / "other", "nosuch.toml") == FAILED
        assert "no such file" in (cli.folder / "other" / ERROR).read_text()
