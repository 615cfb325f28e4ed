"""Which rows are written, and what they say of speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from setpoint.track.progress import Progress
from setpoint.train.callbacks.log import TIMING, LogCallback
from setpoint.train.loop import Update
from setpoint.train.position import Position
from setpoint.train.run import train

from ..small import rows, small_job

UPDATE = Update(loss=2.0, nats=1.9, grad_norm=0.5, lr=0.01, tokens=64)


def steps(tmp_path: Path, kind: str, *flags: str) -> list[int]:
    run = train(small_job(tmp_path, "duration=10 steps", *flags)).directory
    return [row["step"] for row in rows(run) if row["kind"] == kind]


@pytest.mark.parametrize(
    ("every", "logged"),
    [
        ("4 steps", [4, 8, 10]),
        ("200 tokens", [4, 7, 10]),
        ("last_step", [10]),
        ("never", []),
        ("1 h", [10]),
    ],
)
def test_rows(tmp_path: Path, every: str, logged: list[int]) -> None:
    assert steps(tmp_path, "train", f"tracking.every={every}") == logged


@pytest.mark.parametrize(("every", "judged"), [("4 steps", [4, 8, 10]), ("last_step", [10])])
def test_evaluations(tmp_path: Path, every: str, judged: list[int]) -> None:
    assert steps(tmp_path, "evaluation", f"evaluation.every={every}") == judged


def test_speed_and_utilization() -> None:
    log = LogCallback([], Progress(), flops_per_token=1e6, peak_flops=1e9)
    log.logged = Position(step=10, tokens=1000, seconds=5.0)
    row = log.row(Position(step=20, tokens=2000, epochs=0.5, seconds=7.0), UPDATE)
    assert row["tokens_per_second"] == 500.0
    assert row["mfu"] == 500.0 * 1e6 / 1e9
    assert (row["loss"], row["cross_entropy"], row["epoch"]) == (2.0, 1.9, 0.5)


def test_without_a_peak_there_is_no_utilization() -> None:
    log = LogCallback([], Progress(), flops_per_token=1e6, peak_flops=None)
    log.logged = Position()
    assert log.row(Position(step=1, tokens=64, seconds=1.0), UPDATE)["mfu"] is None


def test_rows_hold_all_digits(tmp_path: Path) -> None:
    run = train(small_job(tmp_path, "duration=3 steps")).directory
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert json.dumps(row) == line
        if row["kind"] == "train":
            assert set(TIMING) < row.keys()
            assert len(repr(row["loss"])) > 10


def test_what_people_see(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(small_job(tmp_path, "duration=2 steps", "tracking.progress=lines"))
    memory, *lines = capsys.readouterr().out.splitlines()
    assert memory.startswith("memory: parameters ")
    assert [line.split("  ")[0] for line in lines[:2]] == ["step 1/2", "step 2/2"]
    assert lines[1].split("  ")[-1] == "0:00 left"
    assert lines[2].startswith("step 2: held-out loss ")
