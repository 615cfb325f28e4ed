"""A run as it is seen from its files while another process writes them."""

import json
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from setpoint.cli.runs import rendered
from setpoint.report.plot import blocks
from setpoint.runs.live_view import POINTS, Watched
from setpoint.track.run_directory import HEARTBEATS

from ..support.snapshots import refused


def made(folder: Path, **batch: Any) -> Path:
    run = folder / "run"
    (run / HEARTBEATS).mkdir(parents=True)
    job = {"duration": "100 steps", "batch": {"global_size": 8, **batch}}
    (run / "config.json").write_text(json.dumps(job))
    (run / "origins.json").write_text("{}")
    return run


def row(step: int, loss: float = 2.0, **more: Any) -> str:
    known = {"kind": "train", "step": step, "tokens": 10 * step, "epoch": 0.0, "seconds": step}
    return json.dumps({**known, "mean_loss": loss, **more}) + "\n"


def beat(run: Path, rank: int, age: float, **more: Any) -> None:
    now = time.time()
    said = {"rank": rank, "world_size": 2, "host": "h", "pid": 1, "every": 10.0, "step": 7}
    said |= {"time": now - age, "since": now - age, "phase": "step", **more}
    (run / HEARTBEATS / f"rank-{rank}.json").write_text(json.dumps(said))


def test_rows_are_taken_once_each_and_whole(tmp_path: Path) -> None:
    run = made(tmp_path)
    seen = Watched(run)
    seen.poll()
    assert seen.position is None
    assert seen.seconds_left is None
    metrics = run / "metrics.jsonl"
    metrics.write_text(row(10) + row(20) + row(25)[:20])
    seen.poll()
    assert seen.curves["train.mean_loss"] == [(10, 2.0), (20, 2.0)]
    assert seen.done == 0.2
    assert seen.seconds_left == 80.0
    metrics.write_text(row(10) + row(20) + row(25) + "no row\n" + row(30, float("nan")))
    seen.poll()
    assert [x for x, _ in seen.curves["train.mean_loss"]] == [10, 20, 25]
    assert seen.last["train"]["step"] == 30
    assert seen.to_json()["broken_lines"] == 1
    # A run that went back has its rows cut, in a file that takes the place of the old one.
    other = run / "metrics.new"
    other.write_text(row(10) + row(11, 3.0))
    os.replace(other, metrics)
    seen.poll()
    assert seen.curves["train.mean_loss"] == [(10, 2.0), (11, 3.0)]


def test_steps_of_a_batch_ramp_count_by_their_sequences(tmp_path: Path) -> None:
    ramp = {"start": 8, "increment": 24, "over": "50 steps"}
    run = made(tmp_path, global_size=32, ramp=ramp)
    (run / "metrics.jsonl").write_text(row(50))
    seen = Watched(run)
    seen.poll()
    assert seen.done == 50 * 8 / (50 * 8 + 50 * 32)
    assert seen.seconds_left == 200.0


def test_a_long_curve_keeps_its_form(tmp_path: Path) -> None:
    run = made(tmp_path)
    (run / "metrics.jsonl").write_text("".join(row(step, step / 7) for step in range(1, 9001)))
    seen = Watched(run)
    seen.poll()
    curve = seen.curves["train.mean_loss"]
    assert POINTS / 2 <= len(curve) <= POINTS
    assert curve[-1][0] > 8900
    assert all(b[0] > a[0] for a, b in pairwise(curve))


def test_heartbeats_tell_of_runs_elsewhere(tmp_path: Path) -> None:
    run = made(tmp_path)
    (run / "events.jsonl").write_text(json.dumps({"event": "start"}) + "\n")
    seen = Watched(run)
    seen.poll()
    assert seen.status == "killed"
    beat(run, 0, age=1.0)
    beat(run, 1, age=500.0)
    seen.poll()
    assert seen.status == "running"
    (gone,) = seen.troubled()
    assert gone.rank == 1
    assert gone.is_gone
    beat(run, 1, age=1.0, since=time.time() - 300)
    seen.poll()
    (still,) = seen.troubled()
    assert not still.is_gone
    assert still.seconds == pytest.approx(300, abs=5)
    assert "rank 1 on h stands still for 5:00 at step 7" in rendered(seen, 100, 40, colour=False)


def test_a_record_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    run = made(tmp_path)
    evil = "\x1b]0;title\x07\x1b[2J"
    (run / "events.jsonl").write_text(
        json.dumps({"event": "save", "time": evil, "checkpoint": evil}) + "\n"
    )
    (run / "metrics.jsonl").write_text(row(1) + json.dumps({"kind": evil, "step": evil, evil: 1}))
    beat(run, 1, age=500.0, host=evil)
    seen = Watched(run)
    seen.poll()
    text = rendered(seen, 100, 40, colour=False)
    assert "\x1b" not in text
    assert "\x07" not in text


def test_what_is_not_shown_is_said(tmp_path: Path) -> None:
    run = made(tmp_path)
    asked = ["train.mean_los", "train.mean_loss"]
    seen = Watched(run, asked, asked)
    seen.poll()
    assert "no row has" not in rendered(seen, 100, 40, colour=False)  # nothing was trained yet
    (run / "metrics.jsonl").write_text(row(1) + "no row\n")
    seen.poll()
    lines = rendered(seen, 100, 40, colour=False).splitlines()
    assert "lines that are not rows: 1; `setpoint runs verify` lists them" in lines
    assert "no row has train.mean_los. Did you mean train.mean_loss?" in lines


def test_why_a_run_failed_is_shown(tmp_path: Path) -> None:
    run = made(tmp_path)
    why = "step 2: the loss is nan, and more words than an event has room for.\nLower the rate"
    said = [{"event": "start"}, {"event": "fault", "error": why}, {"event": "uploaded"}]
    (run / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in said))
    seen = Watched(run)
    seen.poll()
    assert f"error: {why.replace(chr(10), ' ')}" in rendered(seen, 80, 24, colour=False)


def test_folders_that_are_no_runs_are_refused(tmp_path: Path) -> None:
    with refused():
        Watched(tmp_path)


def test_a_line_of_blocks() -> None:
    assert blocks([1.0, 2.0, 3.0], 10) == "▁▅█  1 to 3"
    assert blocks([5.0], 10) == "▁  5 to 5"
    # The extremes are of the values, not of the means that are drawn.
    assert blocks([float(n) for n in range(100)], 4) == "▂▄▅▇  0 to 99"
    assert blocks([1.0, 2.0], 2, (0.0, 8.0)) == "▂▃  1 to 2"
