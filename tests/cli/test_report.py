"""`setpoint report` from the command line."""

from __future__ import annotations

import json

import pytest

from ..report.page.records import setting, write_run
from .conftest import CommandLine


@pytest.fixture
def runs(cli: CommandLine) -> CommandLine:
    for name, lr in (("a", 0.1), ("b", 0.2), ("c", 0.3)):
        write_run(cli.folder / "runs" / name, settings={"optimizer.lr": setting(lr)})
    return cli


def test_reports_of_one_run_of_several_and_of_a_folder(runs: CommandLine) -> None:
    assert runs.ok("report runs/a").startswith("runs/a/report.html: 1 run, 0.")
    assert runs.ok("report runs").startswith("runs/report.html: 3 runs, ")
    found = json.loads(runs.ok("report runs/a runs/b --output two.html --json"))
    assert found["runs"] == 2 and found["notes"] == []
    text = (runs.folder / "two.html").read_text()
    assert len(text.encode()) == found["bytes"] and '"path":"optimizer.lr"' in text


def test_what_is_broken_is_said(runs: CommandLine) -> None:
    (runs.folder / "runs/a/environment.json").write_text("{")
    result = runs("report runs/a")
    assert result.status == 0 and "note: a: environment.json cannot be read" in result.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("report runs/a --objective los", "no run has the metric 'evaluation.los'"),
        ("report runs/a --direction maximize", "--direction needs --objective"),
        ("report runs/a --objective loss --direction up", "is one of minimize, maximize; got 'up'"),
        ("report runs/a --output a.png", "a report is a file that ends in .html"),
        ("report nothing", "nothing is not a run directory"),
        ("report runs/a --seed 1", "setpoint report sets no fields"),
        ("report --sed runs/a", "unexpected argument '--sed': setpoint report sets no fields"),
    ],
)
def test_what_is_refused(runs: CommandLine, words: str, message: str) -> None:
    result = runs(words)
    assert result.status == 2 and message in result.err
    assert not list(runs.folder.rglob("*.html"))
