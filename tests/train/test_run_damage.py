"""Damaged checkpoints: named, skipped, and the run still ends exactly where it should."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from setpoint.config.composition import compose
from setpoint.config.record.record import read_record
from setpoint.train.config import Job
from setpoint.train.run import train

from ..support.snapshots import refused
from .small import assert_same_run, events, small_job, snapshot

# What tells of every session, also of one that changed nothing.
GROWING = ("events.jsonl", "chain.jsonl", "logs/rank-0.log")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A whole run of 30 steps, and one that was stopped after 22."""
    folder = tmp_path_factory.mktemp("runs")
    whole = train(small_job(folder), directory=folder / "whole").directory
    part = small_job(folder, "duration=22 steps", "schedule.horizon=30")
    # It ends between two periods, as after a signal; the longer duration then goes on.
    stopped = train(part, directory=folder / "part").directory
    return whole, stopped


@pytest.fixture
def stopped(runs: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of the stopped run, with checkpoints of the steps 20 and 22."""
    copy = tmp_path / "copy"
    shutil.copytree(runs[1], copy)
    steps = sorted(path.name for path in (copy / "checkpoints").glob("step-*"))
    assert steps[-2:] == ["step-00000020", "step-00000022"]
    return copy


def go_on(run: Path) -> int:
    """Train the run to its 30 steps; the step it went on from."""
    draft, _ = read_record(Job, str(run))
    return train(
        compose(Job, draft, flags=["duration=30 steps"]).resolve(), directory=run
    ).started.step


# Each damage of each file: tests/checkpoint/test_store_damage.py.
@pytest.mark.parametrize(
    ("name", "damage"), [("optimizer.safetensors", flip), ("manifest.json", Path.unlink)]
)
def test_the_one_before_is_used(
    stopped: Path, runs: tuple[Path, Path], name: str, damage: Callable[[Path], None]
) -> None:
    left = stopped / "checkpoints" / "step-00000024.tmp-999999999"
    left.mkdir()
    damage(stopped / "checkpoints" / "step-00000022" / name)
    assert go_on(stopped) == 20
    (event,) = events(stopped, "damaged")
    assert event["checkpoint"] == "step-00000022"
    (moved,) = events(stopped, "set_aside")
    assert (moved["checkpoint"], moved["to"]) == ("step-00000022", "step-00000022.damaged-1")
    assert (stopped / "checkpoints" / moved["to"]).is_dir()
    assert name in event["reason"]
    # The final state is exact. The oracle was not judged at step 22, and nor is this run now.
    assert_same_run(stopped, runs[0])
    assert not left.exists(), "what a killed process left"


def test_all_damaged_is_refused_and_nothing_is_lost(stopped: Path) -> None:
    folders = sorted((stopped / "checkpoints").glob("step-*"))
    for folder in folders:
        flip(folder / "model.safetensors")
    before = {n: d for n, d in snapshot(stopped).items() if n not in GROWING}
    with refused():
        go_on(stopped)
    assert {n: d for n, d in snapshot(stopped).items() if n not in GROWING} == before


def test_a_lost_metrics_file_is_told_and_does_not_stop_the_run(
    stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (stopped / "metrics.jsonl").unlink()
    draft, _ = read_record(Job, str(stopped))
    flags = ["duration=24 steps", "tracking.progress=lines"]
    train(compose(Job, draft, flags=flags).resolve(), directory=stopped)
    assert "metrics.jsonl has no rows of steps before 22" in capsys.readouterr().out
