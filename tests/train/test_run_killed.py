"""The record of a real run that was killed: lost steps add up, and its chain of hashes fits."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from setpoint.ops.proof import verify_chain
from setpoint.train.run_status import goodput_of

from .commands import Commands
from .small import events, rows, write_config


def test_a_run_that_was_killed(tmp_path: Path, commands: Commands) -> None:
    words = ("train", str(write_config(tmp_path)), "--duration=8 steps", "--checkpoint.every=4")
    assert commands.start(tmp_path, *words, kill=("update", 7)).wait() == -signal.SIGKILL
    (run,) = (tmp_path / "runs").iterdir()
    killed = verify_chain(run)
    assert (killed.problems, killed.checkpoints) == ([], 1)
    status, said = commands.run(tmp_path, *words)
    ended = verify_chain(run)
    assert (ended.problems, ended.notes) == ([], [])
    assert (ended.rows, ended.checkpoints) == (len(rows(run)), 2)
    assert status == 0 and "goodput" in said and f" {ended.head}\n" in said
    (resumed,) = events(run, "resume")
    # The 7th update was made, and its row was not written.
    assert resumed["step"] == 4 and resumed["dropped"]["steps"] == 2
    assert resumed["began"] < resumed["time"]
    found = goodput_of(run)
    assert (found.sessions, found.lost_steps) == (2, 2)
    (end,) = events(run, "end")
    assert found.trained + found.waiting == pytest.approx(end["seconds"])
    assert min(found.lost, found.starting, found.saving, found.evaluating, found.idle) > 0
    assert sum(found.parts.values()) == pytest.approx(found.wall)
