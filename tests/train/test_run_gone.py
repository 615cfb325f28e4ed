"""Runs without checkpoints: killed before the first, or whose checkpoints were taken away."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import SetpointError
from setpoint.train import run_name
from setpoint.train.contract import ContractRefused
from setpoint.train.loop import Loop
from setpoint.train.run import train
from setpoint.train.run_name import find_run
from setpoint.train.verdict import StepResult

from .small import assert_same_run, events, rows, small_job, snapshot

SHORT = ("duration=6 steps", "checkpoint.every=5")


class Killed(BaseException):
    pass


def test_nothing_is_saved_on_the_way_unless_asked(tmp_path: Path) -> None:
    run = train(small_job(tmp_path, "duration=6 steps", "checkpoint.every=never")).directory
    assert [event["step"] for event in events(run, "save")] == [6]


def test_a_run_killed_before_its_first_checkpoint_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    oracle = train(small_job(tmp_path, *SHORT), tmp_path / "oracle").directory
    real = Loop.take_step

    def killed(loop: Loop) -> StepResult:
        if loop.position.step == 4:
            raise Killed
        return real(loop)

    monkeypatch.setattr(Loop, "take_step", killed)
    with pytest.raises(Killed):
        train(small_job(tmp_path, *SHORT), tmp_path / "run")
    assert len([row for row in rows(tmp_path / "run") if row["kind"] == "train"]) == 4
    monkeypatch.setattr(Loop, "take_step", real)
    again = train(small_job(tmp_path, *SHORT, "tracking.progress=lines"), tmp_path / "run")
    assert (again.status, again.started.step) == (0, 0)
    assert f"{tmp_path / 'run'} has no checkpoint yet: it starts again at step 0" in (
        capsys.readouterr().out
    )
    assert [event["step"] for event in events(again.directory, "resume")] == [0]
    assert_same_run(again.directory, oracle)


@pytest.mark.parametrize(
    ("resume", "flags", "stopped", "words"),
    [
        ("auto", SHORT, False, "finished at step 6, and its checkpoints are gone"),
        ("never", SHORT, True, "was trained to step 5, and its checkpoints are gone"),
        (
            "auto",
            (*SHORT[:1], "checkpoint.every=never", "checkpoint.last=none"),
            False,
            "finished at step 6, and it saved no checkpoint (checkpoint.last = none, or "
            "checkpoint.save = false)",
        ),
    ],
)
def test_what_was_trained_is_not_overwritten_in_silence(
    tmp_path: Path, resume: str, flags: tuple[str, ...], stopped: bool, words: str
) -> None:
    run = train(small_job(tmp_path, *flags)).directory
    shutil.rmtree(run / "checkpoints")
    if stopped:
        text = (run / "events.jsonl").read_text()
        end = text.index("\n", text.index('"save"')) + 1
        (run / "events.jsonl").write_text(text[:end])
    before = snapshot(run)
    with pytest.raises(SetpointError) as caught:
        train(small_job(tmp_path, *flags, f"checkpoint.resume={resume}"))
    assert str(caught.value) == (
        f"{run} {words}, so that there is nothing to resume from. --checkpoint.resume restart "
        "trains it again from step 0 and keeps its metrics next to the new ones; another --name "
        f"makes a separate run"
    )
    assert snapshot(run) == before


def test_it_starts_over_where_that_is_asked_for(tmp_path: Path) -> None:
    again = (*SHORT, "checkpoint.resume=restart")
    run = train(small_job(tmp_path, *again)).directory
    for number in (1, 2):
        # With checkpoints it is as any other run.
        assert train(small_job(tmp_path, *again)).started.step == 6
        shutil.rmtree(run / "checkpoints")
        before = (run / "metrics.jsonl").read_bytes()
        assert train(small_job(tmp_path, *again)).started.step == 0
        assert (run / f"metrics.{number}.jsonl").read_bytes() == before
        (event, *_) = events(run, "restart")[number - 1 :]
        assert event["metrics"] == f"metrics.{number}.jsonl"
        assert [row["step"] for row in rows(run) if row["kind"] == "train"] == [1, 2, 3, 4, 5, 6]


def test_the_weights_alone_are_for_use(tmp_path: Path) -> None:
    flags = ("checkpoint.every=never", "checkpoint.last=weights", "schedule.horizon=6")
    outcome = train(small_job(tmp_path, "duration=6 steps", *flags))
    run = outcome.directory
    (folder,) = (run / "checkpoints").glob("step-*")
    assert {path.name for path in folder.glob("*.safetensors")} == {"model.safetensors"}
    assert events(run, "save")[-1]["part"] == "weights"
    again = train(small_job(tmp_path, "duration=6 steps", *flags))
    assert (again.status, again.final_position.step) == (0, 6)
    for one, two in zip(
        again.components.model.parameters(), outcome.components.model.parameters(), strict=True
    ):
        assert one.equal(two)
    with pytest.raises(SetpointError, match="holds only the weights"):
        train(small_job(tmp_path, "duration=8 steps", *flags))


def test_a_longer_configuration_finds_the_run_and_names_what_to_type(tmp_path: Path) -> None:
    """The curve follows from the duration, so that it is another fingerprint and the same run."""
    short = train(small_job(tmp_path, "duration=4 steps")).directory
    other = train(small_job(tmp_path, "duration=4 steps", "optimizer.lr=0.5")).directory
    before = snapshot(short)
    with pytest.raises(ContractRefused) as caught:
        train(small_job(tmp_path, "duration=6 steps"))
    lines = str(caught.value).splitlines()
    assert lines[0] == (f"{short} cannot be resumed: 1 identity value differs from its record")
    assert lines[2:4] == [
        "  duration (may be raised on resume)",
        "    saved      '4 steps' (command line duration)",
    ]
    assert lines[-4:] == [
        f"  To resume it as it was saved: setpoint train {short}",
        "  To train a new run: the same command with --name NAME",
        f"  To resume this run anyway: setpoint train {short} --duration '6 steps' --accept "
        "schedule.horizon",
        '  To stay on the recorded learning-rate curve, add --schedule.horizon "4 steps".',
    ]
    assert snapshot(short) == before
    # The accepted configuration finds the run from then on; another one is another run still.
    outcome = train(small_job(tmp_path, "duration=6 steps"), accept=["schedule"])
    assert (outcome.directory, outcome.started.step) == (short, 4)
    again = train(small_job(tmp_path, "duration=6 steps"))
    assert (again.directory, again.started.step) == (short, 6)
    assert {path.name for path in short.parent.iterdir()} == {short.name, other.name}


def test_a_run_set_aside_under_another_name_is_not_found(tmp_path: Path) -> None:
    run = train(small_job(tmp_path, "duration=2 steps")).directory
    run.rename(run.with_name(f"{run.name}.old"))
    assert train(small_job(tmp_path, "duration=3 steps")).started.step == 0


def test_only_records_of_the_same_run_are_read_where_a_new_run_would_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = run_name._recorded

    def recorded(folder: str) -> dict[str, Any]:
        read.append(folder)
        return real(folder)

    monkeypatch.setattr(run_name, "_recorded", recorded)
    first = small_job(tmp_path, "duration=2 steps")
    place = str(train(first).directory)
    assert read == []
    train(first)
    assert read == []  # it lies under its own name
    train(small_job(tmp_path, "duration=2 steps", "optimizer.lr=0.5"))
    assert read == []  # nor is there another one of this configuration
    for name in ("small-x", "smaller-00000000", "small-0000000g"):
        (tmp_path / "runs" / name).mkdir()
    assert find_run(small_job(tmp_path, "duration=3 steps")) == place
    assert read == [place]
    damaged = tmp_path / "runs" / "small-00000000"
    damaged.mkdir()
    (damaged / "config.json").write_text("[" * 10_000)
    (damaged / run_name.identity_mark(first)).touch()
    assert find_run(small_job(tmp_path, "duration=3 steps")) == place


def test_an_accepted_value_finds_the_run(tmp_path: Path) -> None:
    """By the fingerprint of its record, whatever was accepted."""
    first, second = small_job(tmp_path, *SHORT), small_job(tmp_path, *SHORT, "optimizer.lr=0.5")
    run = train(first, until=3).directory
    with pytest.raises(SetpointError, match="--accept optimizer.lr has no effect: there is no run"):
        train(second, accept=["optimizer.lr"])
    assert train(second, run, accept=["optimizer.lr"]).final_position.step == 6
    assert train(second).directory == run
    with pytest.raises(ContractRefused, match="saved      0.5"):
        train(first)


def test_the_command_of_a_run_that_was_lengthened(tmp_path: Path) -> None:
    """It finds the directory by the name that the run began with, and says what became of it."""
    run = train(small_job(tmp_path, "duration=4 steps")).directory
    train(small_job(tmp_path, "duration=6 steps"), run, ["schedule"])
    before = snapshot(run)
    with pytest.raises(SetpointError) as caught:
        train(small_job(tmp_path, "duration=4 steps"))
    text = str(caught.value)
    assert f"{run} cannot be resumed: a budget may grow, not shrink" in text
    assert "    saved      '6 steps' (command line duration), lengthened from 4 steps\n" in text
    assert "    requested  '4 steps' (command line duration)\n" in text
    assert f"  {run} is finished at step 6; nothing is left to train.\n" in text
    assert "To resume it" not in text
    assert text.endswith("shorter one from the start: the same command with --name NAME")
    assert train(small_job(tmp_path, "duration=4 steps", "name=again")).final_position.step == 4
    # Where the directory was given, a name would have no effect.
    with pytest.raises(SetpointError) as caught:
        train(small_job(tmp_path, "duration=4 steps"), run)
    assert str(caught.value).endswith(
        f"setpoint train {run}/config.toml --duration '4 steps' --name NAME"
    )
    assert snapshot(run) == before
