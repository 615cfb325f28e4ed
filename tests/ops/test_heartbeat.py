"""Heartbeats go on while a rank hangs, and say so; nothing about them ends a run."""

import json
import os
import time
from pathlib import Path

import pytest

from setpoint.config import RunError
from setpoint.ops.heartbeat import Beat, Heart, Standing, read_heartbeats

from ..support.snapshots import refused


def heart(run: Path, rank: int = 0, size: int = 1, every: float = 0.01) -> Heart:
    return Heart(run, every, rank, size, lambda text: None)


def wait_for_beats(run: Path, since: float) -> Beat:
    """The first heartbeat that is written after a moment."""
    for _ in range(1000):
        (beat,) = read_heartbeats(run)
        if beat.time > since:
            return beat
        time.sleep(0.01)
    raise AssertionError("no heartbeat came")


def test_beats_go_on_without_progress_and_say_since_when(tmp_path: Path) -> None:
    with heart(tmp_path) as beating:
        (first,) = read_heartbeats(tmp_path)
        assert (first.phase, first.step, first.pid) == ("start", None, os.getpid())
        beating.poll = lambda: Standing("step", 7, 0.1 + 0.2, "step-4")
        moved = wait_for_beats(tmp_path, time.time())
        assert (moved.phase, moved.step, moved.loss, moved.checkpoint) == (
            "step", 7, 0.1 + 0.2, "step-4",
        )  # fmt: skip
        later = wait_for_beats(tmp_path, moved.time)
        # The rank hangs: its file is written, and names the moment at which it came to step 7.
        assert later.since == moved.since < later.time
        assert later.stalled_seconds(later.since + 9) == 9 and not later.is_gone(later.time)
        assert later.is_gone(later.time + 1)
    (last,) = read_heartbeats(tmp_path)
    assert (last.phase, last.step) == ("end", 7)
    assert not last.is_gone(last.time + 99) and last.stalled_seconds(last.time + 99) == 0


def test_a_session_that_fails_says_so_and_a_loss_that_is_not_finite_is_none(tmp_path: Path) -> None:
    with pytest.raises(KeyError), heart(tmp_path) as beating:
        beating.poll = lambda: Standing("evaluate", 3, float("nan"))
        raise KeyError
    (last,) = read_heartbeats(tmp_path)
    assert (last.phase, last.step, last.loss) == ("failed", 3, None)


def test_ranks_of_a_larger_session_are_forgotten(tmp_path: Path) -> None:
    for rank in range(3):
        with heart(tmp_path, rank, 3):
            pass
    (tmp_path / "heartbeats" / f"rank-0.json.tmp-{os.getpid()}").write_text("half of a")
    (tmp_path / "heartbeats" / "rank-1.json").write_text("{")
    assert [beat.rank for beat in read_heartbeats(tmp_path)] == [0, 2]
    with heart(tmp_path, 0, 2), heart(tmp_path, 1, 2):
        assert [beat.world_size for beat in read_heartbeats(tmp_path)] == [2, 2]
    names = sorted(each.name for each in (tmp_path / "heartbeats").iterdir())
    assert names == ["rank-0.json", "rank-1.json"]


def test_a_heartbeat_that_cannot_be_written_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with Heart(tmp_path, 60, 0, 1, said.append) as beating:
        before = json.loads(beating.path.read_text())

        def full(path: Path, value: object) -> None:
            raise RunError(f"{path} cannot be written: No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("setpoint.ops.heartbeat.write_json", full)
            beating._try(Standing("step", 1))
            beating._try(Standing("step", 2))
        assert json.loads(beating.path.read_text()) == before
    assert said == [f"heartbeat: {beating.path} cannot be written: No space left on device"]
    assert read_heartbeats(tmp_path)[0].phase == "end"


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "heartbeats").write_text("a file")
    with refused(RunError), heart(tmp_path):
        pass
