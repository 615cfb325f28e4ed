"""Orderly stops of real processes: SIGTERM, Ctrl-C, and a second Ctrl-C."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from setpoint.checkpoint.folder import list_checkpoints
from setpoint.checkpoint.loading import verify_directory
from setpoint.checkpoint.store import CheckpointStore
from setpoint.resilience.signals import StopRequest
from setpoint.shapes.batch import Batch
from setpoint.train.loop import Loop
from setpoint.train.objective import Count, Objective
from setpoint.train.run import Run, train

from ..support.snapshots import refused
from .commands import Command, Commands
from .small import assert_same_run, events, rows, small_job, write_config

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
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("oracle")
    write_config(folder)
    status, output = commands.run(folder, *WORDS)
    assert status == 0, output
    return the_run(folder)


def test_a_signal_saves_at_that_very_step_and_leaves(
    commands: Commands, tmp_path: Path, oracle: Path
) -> None:
    process = start(commands, tmp_path, "--checkpoint.every=never", lines=9)
    process.signal(signal.SIGHUP)
    assert process.wait() == 75
    assert "SIGHUP" in process.output.read_text()
    run = the_run(tmp_path)
    # The step of the checkpoint is the last that was trained and logged: nothing is lost.
    step = max(row["step"] for row in rows(run))
    assert 5 <= step < 50
    newest = max(list_checkpoints(run / "checkpoints"))
    assert newest == step
    assert (run / "checkpoints" / "latest").read_text() == f"step-{step:08d}\n"
    end = events(run, "end")[-1]
    assert (end["step"], end["status"]) == (step, 75)
    # The same command goes on in the step after it and gets where the oracle is. Its periods do
    # not matter to what is learned, only to which checkpoints are there at the end.
    assert commands.run(tmp_path, *WORDS)[0] == 0
    assert events(run, "resume")[-1]["step"] == step
    assert_same_run(run, oracle)


def test_a_run_that_saves_nothing_ends_and_starts_again(commands: Commands, tmp_path: Path) -> None:
    nothing = ("--checkpoint.save=false", "--duration=1000 steps")
    process = start(commands, tmp_path, *nothing, lines=9)
    process.signal(signal.SIGUSR2)
    wait_for(process, "SIGUSR2: no checkpoint is saved, as checkpoint.save = false")
    process.signal(signal.SIGTERM)
    assert process.wait() == 143
    output = process.output.read_text()
    assert "training from step 0 on is lost" in output
    assert "nothing is saved (checkpoint.save = false)" in output
    run = the_run(tmp_path)
    assert not list(run.glob("checkpoints/*")) and not events(run, "save")
    (end,) = events(run, "end")
    assert end["signal"] == "SIGTERM" and 5 <= end["step"] < 1000
    again = commands.start(tmp_path, *WORDS, *nothing)
    wait_for(again, "has no checkpoint yet: it starts again at step 0")
    wait_for(again, "step 3/")
    again.signal(signal.SIGTERM)
    assert again.wait() == 143


LAB = """
import time, torch
from contextlib import suppress
from setpoint.config import SetpointError
from setpoint.data.sources.config import SourceConfig
from setpoint.data.document import Document

def hold(name):
    \"\"\"Wait while the file `hold` names this place; `held` says that it does.\"\"\"
    if holds(name):
        open("held", "w").close()
    while holds(name):
        time.sleep(0.005)

def holds(name):
    with suppress(FileNotFoundError):  # which let_go removes
        return open("hold").read() == name
    return False

class Slow(SourceConfig, type="slow", owner="lab:SlowSource"):
    name: str = "slow"

class SlowSource:
    def __init__(self, config, *, where=""):
        pass

    def documents(self):
        for number in range(40):
            if number == 20:
                hold("read")
            yield Document(f"slow/{number:02}", bytes(range(65, 90)) * (8 + number))

class Holding(torch.optim.SGD):
    steps = 0

    def step(self, closure=None):
        Holding.steps += 1
        hold(f"step {Holding.steps}")
        return super().step(closure)

hold("import")
"""
SLOW = (
    "--import=lab",
    "--data.sources=[{type=slow}]",
    "--optimizer={type=import, target=lab:Holding}",
    "--checkpoint.every=never",
)


def hold(commands: Commands, folder: Path, place: str, *flags: str) -> Command:
    """Start a run of parts that wait at a place, and wait until it is there."""
    write_config(folder)
    (folder / "lab.py").write_text(LAB)
    (folder / "hold").write_text(place)
    process = commands.start(folder, *WORDS, *SLOW, *flags)
    while process.running and not (folder / "held").exists():
        time.sleep(0.001)
    return process


def let_go(folder: Path) -> None:
    for name in ("hold", "held"):
        (folder / name).unlink()


@pytest.mark.parametrize(
    ("place", "number", "status", "words"),
    [
        ("import", signal.SIGINT, 130, "interrupted: nothing was trained"),
        ("read", signal.SIGUSR1, 75, "stopped by SIGUSR1: nothing was trained"),
    ],
)
def test_before_training_a_signal_ends_it_at_once_and_quietly(
    commands: Commands, tmp_path: Path, place: str, number: int, status: int, words: str
) -> None:
    process = hold(commands, tmp_path, place)
    process.signal(number)
    assert process.wait() == status
    told = process.output.read_text()
    assert told.endswith(words + "; the same command starts over" * (place == "read") + "\n")
    assert "Traceback" not in told
    assert not list((tmp_path / "runs").glob("*/checkpoints/*"))


def test_the_first_step_is_not_waited_for(commands: Commands, tmp_path: Path) -> None:
    """A compilation may take minutes there; the run goes on where its checkpoint is."""
    process = hold(commands, tmp_path, "step 1")
    process.signal(signal.SIGTERM)
    assert process.wait() == 75
    told = process.output.read_text()
    assert "nothing was trained; the same command starts over" in told
    assert "Traceback" not in told
    run = the_run(tmp_path)
    assert rows(run) == []
    assert events(run, "end")[-1]["step"] == 0
    let_go(tmp_path)
    assert commands.run(tmp_path, *WORDS, *SLOW, "--duration=50 steps")[0] == 0


def test_a_stop_before_the_first_step_of_a_resumed_run(commands: Commands, tmp_path: Path) -> None:
    process = hold(commands, tmp_path, "step 5")
    process.signal(signal.SIGINT)
    wait_for(process, "press Ctrl-C again")
    let_go(tmp_path)
    assert process.wait() == 130
    assert "\nsaved at step 5; the same command resumes there\n" in process.output.read_text()
    process = hold(commands, tmp_path, "step 1")
    process.signal(signal.SIGINT)
    assert process.wait() == 130
    told = process.output.read_text()
    assert told.endswith("nothing was trained; the same command resumes at step 5\n")


def test_a_second_ctrl_c_does_not_wait(commands: Commands, tmp_path: Path) -> None:
    process = hold(commands, tmp_path, "step 6", "--checkpoint.every=2")
    process.signal(signal.SIGINT)
    wait_for(process, "press Ctrl-C again to stop at once")
    assert process.running
    process.signal(signal.SIGINT)
    assert process.wait() == 130
    told = process.output.read_text()
    assert "Traceback" not in told
    run = the_run(tmp_path)
    newest = f"runs/{run.name}/checkpoints/step-00000004"
    assert (
        f"\ninterrupted: the last steps are not saved. The newest checkpoint is {newest}\n" in told
    )
    assert max(row["step"] for row in rows(run)) == 5
    assert 6 not in list_checkpoints(run / "checkpoints")


def test_a_step_that_does_not_end_is_not_waited_for_longer_than_the_grace_period(
    commands: Commands, tmp_path: Path
) -> None:
    process = hold(
        commands, tmp_path, "step 7", "--resilience.grace_period=0.01", "--checkpoint.every=4"
    )
    process.signal(signal.SIGTERM)
    assert process.wait() == 143
    told = process.output.read_text()
    newest = Path("runs") / the_run(tmp_path).name / "checkpoints" / "step-00000004"
    assert told.endswith(
        f"resilience.grace_period = 0.01 s is over and the step has not ended: exiting without a "
        f"checkpoint of it. The newest checkpoint is {newest}\n"
    )


def wait_for(process: Command, words: str) -> None:
    while process.running and words not in process.output.read_text():
        time.sleep(0.001)


@pytest.mark.parametrize(("steps", "last"), [(12, False), (15, True)])
def test_an_evaluation_is_left_to_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, last: bool
) -> None:
    """The metrics, the best checkpoint and patience come out as if nothing had happened."""
    flags = (f"duration={steps if last else 20} steps", "evaluation.early_stopping.patience=9")
    job = small_job(tmp_path, *flags, "checkpoint.every=3")
    oracle = train(job, directory=tmp_path / "oracle").directory
    stop, batches = StopRequest(), [0]
    real = Objective.count

    def count(self: Objective, batch: Batch) -> Count:
        if not self.model.training:
            batches[0] += 1
            # Each evaluation has 6 batches, after every third step.
            if batches[0] == 6 * (steps // 3 - 1) + 3:
                stop.request()
        return real(self, batch)

    monkeypatch.setattr(Objective, "count", count)
    outcome = train(job, directory=tmp_path / "run", stop=stop)
    assert (outcome.status, outcome.final_position.step) == (75, steps)
    assert "evaluation" not in {row["kind"] for row in rows(outcome.directory)[-1:]}
    monkeypatch.setattr(Objective, "count", real)
    outcome = train(job, directory=tmp_path / "run")
    assert (outcome.status, outcome.started.step) == (0, steps)
    assert outcome.score is not None
    assert_same_run(outcome.directory, oracle)


def test_a_save_that_has_begun_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = CheckpointStore._begin

    def begin(self: CheckpointStore, step: int) -> Path:
        if step == 8:
            os.kill(os.getpid(), signal.SIGINT)
        return real(self, step)

    monkeypatch.setattr(CheckpointStore, "_begin", begin)
    outcome = train(small_job(tmp_path, "evaluation=null"))
    assert (outcome.status, outcome.final_position.step) == (130, 8)
    assert [event["step"] for event in events(outcome.directory, "save")][-1] == 8
    verify_directory(outcome.directory / "checkpoints" / "step-00000008")


def test_training_in_another_thread_is_stopped_by_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = small_job(tmp_path, "duration=1000000 steps", "tracking.progress=lines")
    stop, found = StopRequest(), list[Run]()
    thread = threading.Thread(target=lambda: found.append(train(job, stop=stop)))
    thread.start()
    while thread.is_alive() and not list((tmp_path / "runs").glob("*/checkpoints/*4")):
        time.sleep(0.001)
    stop.request()
    thread.join()
    (outcome,) = found
    assert outcome.status == 75
    assert (
        max(list_checkpoints(outcome.directory / "checkpoints")) == outcome.final_position.step >= 4
    )
    assert "stop it with StopRequest.request()" in capsys.readouterr().out


def test_other_commands_end_quietly_too(commands: Commands, tmp_path: Path) -> None:
    write_config(tmp_path)
    assert commands.run(tmp_path, "train", "small.toml", "--duration=2 steps")[0] == 0
    folder = str(the_run(tmp_path))
    process = commands.start(tmp_path, "generate", folder, "--prompt=abc", "--max-tokens=1000000")
    wait_for(process, "abc")
    process.signal(signal.SIGTERM)
    assert process.wait() == 143
    assert process.output.read_text().endswith("stopped by SIGTERM\n")


def test_a_run_leaves_before_its_time_is_over_and_for_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a checkpoint; and it does not start again while the file is there."""
    monkeypatch.setattr("setpoint.resilience.limits.LOOK", 0.01)
    flags = ("duration=1000000 steps", "evaluation=null", "checkpoint.every=never")
    advance, file = Loop.advance, list[Path]()

    def advanced(self: Loop, *given: Any) -> None:
        advance(self, *given)
        if self.position.step % 5 == 0 and not file:
            limits: Any = self.stop.limits
            limits.ends = dict.fromkeys(limits.ends, time.monotonic())
        elif self.position.step % 5 == 0:
            file[0].touch()

    monkeypatch.setattr(Loop, "advance", advanced)
    outcome = train(small_job(tmp_path, *flags, "resilience.time_limit=30 days"))
    (saved,) = list_checkpoints(outcome.directory / "checkpoints")
    assert outcome.status == 75 and outcome.final_position.step == saved >= 5
    assert outcome.cause == "resilience.time_limit = 720 h"
    assert events(outcome.directory, "end")[-1]["signal"] == outcome.cause
    file.append(outcome.directory / "STOP")
    outcome = train(small_job(tmp_path, *flags))
    assert outcome.status == 75 and outcome.final_position.step > saved
    assert outcome.cause.startswith(f"the stop file {file[0]}")
    with refused():
        train(small_job(tmp_path, *flags))
