"""Orderly stops of real processes: SIGTERM, Ctrl-C, and a second Ctrl-C."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from setpoint.checkpoint.layout import list_checkpoints, unfinished
from setpoint.checkpoint.loading import verify_directory

from .commands import Command, Commands
from .small import assert_same_run, events, rows, write_config

WORDS = ("train", "small.toml", "--duration=50 steps")


def start(commands: Commands, folder: Path, *flags: str, lines: int) -> Command:
    """Start a run and wait until it has logged some rows."""
    write_config(folder)
    process = commands.start(folder, *WORDS, *flags)
    while process.running:
        found = list((folder / "runs").glob("small-*/metrics.jsonl"))
        if found and found[0].read_bytes().count(b"\n") >= lines:
            break
        time.sleep(0.001)
    return process


def the_run(folder: Path) -> Path:
    (run,) = (folder / "runs").glob("small-*")
    return run


@pytest.fixture(scope="module")
def oracle(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody stops."""
    folder = tmp_path_factory.mktemp("oracle")
    write_config(folder)
    status, output = commands.run(folder, *WORDS)
    assert status == 0, output
    return the_run(folder)


@pytest.mark.parametrize(
    ("number", "status", "words"),
    [
        (signal.SIGTERM, 75, "stopped by SIGTERM"),
        (signal.SIGINT, 130, "interrupted"),
    ],
)
def test_a_signal_saves_at_that_very_step_and_leaves(
    commands: Commands, tmp_path: Path, oracle: Path, number: int, status: int, words: str
) -> None:
    process = start(commands, tmp_path, "--checkpoint.every=never", lines=9)
    process.signal(number)
    assert process.wait() == status
    assert words in process.output.read_text()
    run = the_run(tmp_path)
    # The step of the checkpoint is the last that was trained and logged: nothing is lost.
    step = max(row["step"] for row in rows(run))
    assert 5 <= step < 50
    newest = max(list_checkpoints(run / "checkpoints"))
    assert newest == step
    assert (run / "checkpoints" / "latest").read_text() == f"step-{step:08d}\n"
    end = events(run, "end")[-1]
    assert (end["step"], end["status"]) == (step, status)
    # The same command goes on in the step after it and gets where the oracle is. Its periods do
    # not matter to what is learned, only to which checkpoints are there at the end.
    assert commands.run(tmp_path, *WORDS)[0] == 0
    assert events(run, "resume")[-1]["step"] == step
    assert_same_run(run, oracle)


def test_a_second_ctrl_c_does_not_wait(commands: Commands, tmp_path: Path, oracle: Path) -> None:
    """The first is answered after the update, which here takes for ever; the second is not."""
    slow = (
        "--batch.micro_size=500",
        "--model.dim=256",
        "--model.layers=8",
        "--batch.accumulation=2",
    )
    write_config(tmp_path)
    process = commands.start(tmp_path, *WORDS, *slow, "--checkpoint.every=never")
    while process.running and not any(
        b'"save"' in path.read_bytes() for path in (tmp_path / "runs").glob("*/events.jsonl")
    ):
        time.sleep(0.001)
    # The initial state is saved, and now it is in its first update, for seconds.
    time.sleep(0.1)
    process.signal(signal.SIGINT)
    time.sleep(0.1)
    assert process.running
    process.signal(signal.SIGINT)
    assert process.wait() == 130
    run = the_run(tmp_path)
    assert process.output.read_text().endswith("interrupted\n")
    assert "Traceback" not in process.output.read_text()
    # It neither saved nor logged: the update had not ended.
    assert list(list_checkpoints(run / "checkpoints")) == [0]
    assert rows(run) == []


def test_after_a_second_ctrl_c_the_run_goes_on_exactly(
    commands: Commands, tmp_path: Path, oracle: Path
) -> None:
    process = start(commands, tmp_path, lines=9)
    for _ in range(2):
        process.signal(signal.SIGINT)
    assert process.wait() == 130
    run = the_run(tmp_path)
    for directory in list_checkpoints(run / "checkpoints").values():
        verify_directory(directory)
    assert commands.run(tmp_path, *WORDS)[0] == 0
    assert_same_run(run, oracle)
    assert not unfinished(run / "checkpoints")


def test_stopped_again_and_again(commands: Commands, tmp_path: Path, oracle: Path) -> None:
    for lines in (5, 25, 45):
        process = start(commands, tmp_path, lines=lines)
        process.signal(signal.SIGTERM)
        assert process.wait() in (0, 75)
    assert commands.run(tmp_path, *WORDS)[0] == 0
    run = the_run(tmp_path)
    stops = [event["step"] for event in events(run, "end") if event["status"] == 75]
    assert len(stops) >= 2
    assert_same_run(run, oracle)


def test_a_signal_before_training_leaves_nothing_half(commands: Commands, tmp_path: Path) -> None:
    """While it starts, SIGTERM ends the process as it ends any other, or is answered with 75."""
    write_config(tmp_path)
    for delay in (0.0, 0.02, 0.05, 0.08):
        process = commands.start(tmp_path, *WORDS)
        time.sleep(delay)
        process.signal(signal.SIGTERM)
        assert process.wait() in (-signal.SIGTERM, 75), process.output.read_text()
        for directory in list_checkpoints_of(tmp_path):
            verify_directory(directory)
    status, output = commands.run(tmp_path, *WORDS, "--duration=3 steps")
    assert status == 0, output


def list_checkpoints_of(folder: Path) -> list[Path]:
    runs = (folder / "runs").glob("small-*")
    return [path for run in runs for path in list_checkpoints(run / "checkpoints").values()]
