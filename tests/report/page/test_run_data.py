"""Run directories are read as data of bounded size, whatever is in them."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from setpoint.report.page import run_data
from setpoint.report.page.content import document
from setpoint.report.page.html import html_of
from setpoint.report.page.run_data import read_run

from .records import setting, train_row, write_run


def test_rows_become_columns(tmp_path: Path) -> None:
    rows = [
        train_row(1, 2.0, expert_load=[0.25, 0.75], mfu=None),
        {"kind": "evaluation", "step": 1, "held_out_loss": "NaN"},
        {"kind": "sample", "step": 1, "prompt": "a", "text": "abc"},
    ]
    run = read_run(write_run(tmp_path, rows), "r")
    assert not run.problems
    assert list(run.columns["train.loss"].values) == [2.0]
    assert list(run.columns["train.expert_load.1"].values) == [0.75]
    assert math.isnan(run.columns["evaluation.held_out_loss"].values[0])
    assert "train.mfu" not in run.columns and run.texts[0]["text"] == "abc"
    # Rows without a time of their own are as late as the row of training before them.
    assert list(run.seconds) == [0.5, 0.5, 0.5]


def test_broken_rows_are_counted(tmp_path: Path) -> None:
    write_run(tmp_path)
    huge = '{"kind": "train", "step": 11, "loss": 1' + "0" * 400 + "}\n"
    texts = ["nonsense\n", "[1]\n", "[" * 100_000 + "\n", "\xff\n", huge, '{"kind": "train"']
    with (tmp_path / "metrics.jsonl").open("a", encoding="latin-1") as file:
        file.writelines(texts)
    run = read_run(tmp_path, "r")
    assert run.problems == [
        "metrics.jsonl: 4 lines are not valid rows, omitted; the first is line 12"
    ]
    assert run.columns["train.loss"].values[-1] == math.inf
    html_of(document([run], "r"))


def test_large_files_are_cut_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LOG_BYTES", 3500), ("LINE_BYTES", 1000), ("FILE_BYTES", 60),
                        ("COLUMNS", 3), ("EVENTS", 2)):  # fmt: skip
        monkeypatch.setattr(run_data, name, value)
    write_run(
        tmp_path, [train_row(1, 1.0, note="x" * 2000), *(train_row(s, 1.0) for s in range(9))]
    )
    said = " ".join(read_run(tmp_path, "r").problems)
    for part in ("only the first 0 MiB", "line 1", "columns beyond 3", "larger than", "1 events"):
        assert part in said, part


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (tmp_path / "secret.json").write_text('{"password": "hunter2"}')
    for name in ("environment.json", "metrics.jsonl"):
        (run / name).unlink()
    (run / "environment.json").symlink_to(tmp_path / "secret.json")
    os.mkfifo(run / "metrics.jsonl")  # which would block whoever opens it
    found = read_run(run, "r")
    assert found.environment == {} and len(found.problems) == 2
    assert "hunter2" not in html_of(document([found], "r"))


def test_a_folder_with_nothing_in_it(tmp_path: Path) -> None:
    content = document([read_run(tmp_path, "empty")], "empty")
    assert content["runs"][0]["status"] == "unknown"
    assert len(content["runs"][0]["problems"]) == 5
    html_of(content)


def deep(levels: int) -> Any:
    """An object in an object in an object."""
    value: Any = 1
    for _ in range(levels):
        value = {"a": [value]}
    return value


ODD: tuple[Any, ...] = (
    None, True, -1, 10**400, 1e308, "NaN", "", "\ud800", [], [[]], {}, {"": None}, {"a": [{}, 1]},
    deep(300),
)  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_no_shape_of_data_stops_a_report(tmp_path: Path, odd: Any) -> None:
    """Every value that a report looks at, as something else."""
    keys = ("kind", "time", "step", "seconds", "tokens", "loss", "lr", "event", "status", "began",
            "dropped", "cautions", "data_wait", "evaluation_seconds", "prompt", "text")  # fmt: skip
    row = train_row(1, 1.0)
    rows = [row, *({**row, key: odd} for key in keys), {"kind": "sample", "text": odd}, odd]
    starts = {"event": "start", "time": "2026-01-01T00:00:00Z", "step": 0}
    events = [
        starts, *({**starts, key: odd} for key in keys), {**starts, "cautions": [odd]},
        {**starts, "event": "rollback", "dropped": {"time": odd, "seconds": odd, "steps": odd}},
    ]  # fmt: skip
    entry = setting(1)
    settings = {
        "a": odd, "b": {**entry, "value": odd}, "c": {**entry, "layers": odd},
        "d": {**entry, "layers": [odd]}, "e": {**entry, "role": odd},
        "f": {**entry, "layers": [{"layer": odd, "origin": odd, "value": odd}]},
    }  # fmt: skip
    environment = {"packages": odd, "code": odd, "command": odd, "system": {"host": odd}}
    runs = []
    for name in ("a", "b", "c"):
        run = write_run(tmp_path / name, rows, settings, events, environment)
        (run / "labels.json").write_text(json.dumps({"tags": odd, "note": odd}))
        if name == "b":
            for file in ("config.json", "origins.json", "environment.json", "labels.json"):
                (run / file).write_text(json.dumps(odd))
        runs.append(read_run(run, name))
    page = html_of(document(runs, "odd"))
    assert page.startswith("<!DOCTYPE html>") and page.rstrip().endswith("</html>")
