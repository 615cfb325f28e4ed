"""The index of runs: what it says is what the files say, also when they have changed."""

import json
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import ABSENT
from setpoint.files.lock import RunLock
from setpoint.runs import index
from setpoint.runs.index import INDEX, LABELS, Labels, indexed, read_labels, write_labels

from ..support.snapshots import refused

CONFIG = {
    "setpoint": {"schema": 7, "fingerprint": "abcdef0123"},
    "optimizer": {"type": "adamw", "lr": 0.1, "betas": [0.9, 0.95]},
    "data": {"sources": [{"type": "text", "paths": ["a"]}]},
    "name": 'a "name": 3',
}


def make(path: Path, *, losses: list[float], status: int | None = 0, **config: Any) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({**CONFIG, **config}))
    events = [{"time": "2026-01-01T00:00:00Z", "event": "start", "step": 0}]
    if status is not None:
        events.append({"time": "2026-01-02T00:00:00Z", "event": "end", "status": status})
    rows = [{"kind": "train", "step": n + 1, "loss": loss} for n, loss in enumerate(losses)]
    rows.append({"kind": "evaluation", "step": len(losses), "held_out_loss": losses[-1] + 1})
    rows.append({"kind": "user", "number": 1.0})  # of no step
    for name, lines in (("events", events), ("metrics", rows)):
        (path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / ".lock").touch()
    return path


def test_what_is_known_of_a_run(tmp_path: Path) -> None:
    make(tmp_path / "exp" / "one", losses=[3.0, 1.0, 2.0])
    (run,) = indexed(tmp_path)
    assert run.facts == {
        "run": "exp/one", "status": "finished", "step": 3, "started": "2026-01-01T00:00:00Z",
        "updated": "2026-01-02T00:00:00Z", "fingerprint": "abcdef01",
        "goodput": 0.0, "tags": [], "note": "", "archived": False,
    }  # fmt: skip
    expected = {
        "optimizer": "adamw", "optimizer.lr": 0.1, "optimizer.betas": [0.9, 0.95],
        "name": 'a "name": 3',
        "data.sources.0": "text", "data.sources.0.paths": ["a"], "train.loss": 2.0,
        "train.loss.min": 1.0, "train.loss.mean": 2.0, "val.loss": 3.0,
        "evaluation.held_out_loss": 3.0,
        "train.accuracy": ABSENT, "user.number": ABSENT,
        "optimizer.eps": ABSENT, "status": "finished",
    }  # fmt: skip
    assert {name: run.get(name) for name in expected} == expected


def test_files_are_read_again_only_where_they_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        make(tmp_path / name, losses=[2.0])
    before = [(run.facts, run.metrics, run.fields) for run in indexed(tmp_path)]
    seen: list[str] = []
    read = index._read
    monkeypatch.setattr(index, "_read", lambda a, b: seen.append(b.name) or read(a, b))
    assert [(run.facts, run.metrics, run.fields) for run in indexed(tmp_path)] == before
    assert seen == []
    with (tmp_path / "two" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 2, "loss": 0.5}\n')
    write_labels(tmp_path / "one", Labels(("a",), "b", True))
    one, two = indexed(tmp_path)
    assert seen == ["one", "two"]
    assert (two.get("train.loss"), one.facts["tags"], one.facts["archived"]) == (0.5, ["a"], True)
    (tmp_path / "two" / "config.json").unlink()
    assert [run.facts["run"] for run in indexed(tmp_path)] == ["one"]


@pytest.mark.parametrize("content", [b"", b"no database", None])
def test_the_index_may_be_gone_or_damaged(tmp_path: Path, content: bytes | None) -> None:
    make(tmp_path / "one", losses=[2.0])
    indexed(tmp_path)
    if content is None:
        (tmp_path / INDEX).unlink()
    else:
        (tmp_path / INDEX).write_bytes(content)
    for _ in range(2):
        assert [run.get("train.loss") for run in indexed(tmp_path)] == [2.0]


def test_a_folder_that_cannot_be_written_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "one", losses=[2.0])
    monkeypatch.setattr(index, "INDEX", "no/such/folder")
    assert [run.get("train.loss") for run in indexed(tmp_path)] == [2.0]


def test_points_of_a_sweep_are_no_runs(tmp_path: Path) -> None:
    make(tmp_path / "lr=1", losses=[2.0])
    (make(tmp_path / "points" / "lr=1", losses=[2.0]) / "point.json").write_text("{}")
    assert [run.facts["run"] for run in indexed(tmp_path)] == ["lr=1"]


def test_how_runs_have_ended(tmp_path: Path) -> None:
    for name, status in (("a", 0), ("b", 130), ("c", None), ("d", None)):
        make(tmp_path / name, losses=[2.0], status=status)
    lock = RunLock(tmp_path / "d" / ".lock")
    assert [run.facts["status"] for run in indexed(tmp_path)] == [
        "finished", "stopped", "killed", "running",
    ]  # fmt: skip
    lock.release()
    with (tmp_path / "c" / "events.jsonl").open("a") as file:
        file.write('{"event": "fault", "error": "x"}\n')
    assert [run.facts["status"] for run in indexed(tmp_path)][2:] == ["failed", "killed"]


def test_damage_is_named_and_not_kept(tmp_path: Path) -> None:
    run = make(tmp_path / "one", losses=[3.0], setpoint=5)
    with (run / "metrics.jsonl").open("a") as file:
        for step in ("x", [], True, 1e400, None, 7):
            file.write(json.dumps({"kind": "train", "step": step, "loss": 1.0}) + "\n")
    (run / LABELS).write_text("[1]")
    for _ in range(2):
        (found,) = indexed(tmp_path)
        assert (found.facts["step"], found.facts["fingerprint"]) == (7, "")
        assert found.problems == [
            f"{run / LABELS} cannot be read: it is not what `setpoint runs tag` writes; remove it "
            f"to start with no tags"
        ]
    (run / "metrics.jsonl").write_text("{\n")
    assert len(indexed(tmp_path)[0].problems) == 2
    with refused():
        read_labels(run)
