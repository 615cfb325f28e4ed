"""Runs without checkpoints, without the files that they began with, or under another name."""

import shutil
from pathlib import Path

import pytest

from setpoint.cli.main import main
from setpoint.train.loop import Loop
from setpoint.train.run import train
from setpoint.train.verdict import StepResult

from ..data.tokenizers_here import byte_level
from ..support.snapshots import refused
from .small import Killed, assert_same_run, events, rows, small_job, snapshot, train_rows

SHORT = ("duration=6 steps", "checkpoint.every=5")


def test_a_run_killed_before_its_first_checkpoint_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    oracle = train(small_job(tmp_path, *SHORT), directory=tmp_path / "oracle").directory
    real = Loop.take_step

    def killed(loop: Loop) -> StepResult:
        if loop.position.step == 4:
            raise Killed
        return real(loop)

    monkeypatch.setattr(Loop, "take_step", killed)
    with pytest.raises(Killed):
        train(small_job(tmp_path, *SHORT), directory=tmp_path / "run")
    assert len([row for row in rows(tmp_path / "run") if row["kind"] == "train"]) == 4
    monkeypatch.setattr(Loop, "take_step", real)
    again = train(
        small_job(tmp_path, *SHORT, "tracking.progress=lines"), directory=tmp_path / "run"
    )
    assert (again.status, again.started.step) == (0, 0)
    assert f"{tmp_path / 'run'} has no checkpoint yet: it starts again at step 0" in (
        capsys.readouterr().out
    )
    assert [event["step"] for event in events(again.directory, "resume")] == [0]
    assert_same_run(again.directory, oracle)


@pytest.mark.parametrize(
    ("resume", "flags", "stopped"),
    [
        ("auto", SHORT, False),
        ("never", SHORT, True),
        ("auto", (*SHORT[:1], "checkpoint.every=never", "checkpoint.last=none"), False),
    ],
    ids=["finished", "stopped", "without checkpoints"],
)
def test_what_was_trained_is_not_overwritten_in_silence(
    tmp_path: Path, resume: str, flags: tuple[str, ...], stopped: bool
) -> None:
    run = train(small_job(tmp_path, *flags)).directory
    shutil.rmtree(run / "checkpoints")
    if stopped:
        text = (run / "events.jsonl").read_text()
        end = text.index("\n", text.index('"save"')) + 1
        (run / "events.jsonl").write_text(text[:end])
    before = snapshot(run)
    with refused():
        train(small_job(tmp_path, *flags, f"checkpoint.resume={resume}"))
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
        assert [row["step"] for row in train_rows(run)] == [1, 2, 3, 4, 5, 6]


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
    with refused():
        train(small_job(tmp_path, "duration=8 steps", *flags))


def test_a_run_goes_on_without_the_directory_of_its_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = byte_level(tmp_path / "files")
    flags = [f"tokenizer={{type=huggingface, path={files}}}", "schedule=constant"]
    short = small_job(tmp_path, *flags, "duration=4 steps")
    longer = small_job(tmp_path, *flags, "duration=6 steps")
    whole = train(longer, directory=tmp_path / "whole").directory
    run = train(short).directory
    files.rename(tmp_path / "elsewhere")
    words = ["train", str(run), "--duration", "6 steps", "--tracking.progress", "lines"]
    assert main([*words, "--dry-run"]) == 0
    assert main(words) == 0
    kept = f"{files} no longer exists; using the copy in {run}/checkpoints/step-00000004"
    assert capsys.readouterr().out.count(kept) == 2
    assert rows(run)[-1] == rows(whole)[-1]
    # Without a whole checkpoint there is no copy.
    for checkpoint in (run / "checkpoints").glob("step-*"):
        (checkpoint / "manifest.json").write_text("")
    assert main(["train", str(run)]) == 2
