"""Names of run directories, and how a run is found again by its configuration."""

from pathlib import Path
from typing import Any

import pytest

from setpoint.config import SetpointError
from setpoint.config.record.record import fingerprint
from setpoint.train import run_name
from setpoint.train.contract import ContractRefused
from setpoint.train.run import train
from setpoint.train.run_name import find_run, run_directory_of

from ..support.records import remove_field
from .small import events, small_job, snapshot, train_rows


def test_workspace_experiment_name_fingerprint(tmp_path: Path) -> None:
    job = small_job(tmp_path, "experiment=first")
    short = fingerprint(job)[:8]
    assert run_directory_of(job) == str(tmp_path / "runs" / "first" / f"small-{short}")
    job = small_job(tmp_path, "workspace=w")
    assert run_directory_of(job) == f"w/small-{short}"


def test_only_identity_gives_another_directory(tmp_path: Path) -> None:
    base = ("schedule=constant",)
    first = run_directory_of(small_job(tmp_path, *base))
    for flag in ("duration=5 steps", "checkpoint.keep=9", "tracking.every=3", "evaluation=null"):
        assert run_directory_of(small_job(tmp_path, *base, flag)) == first
    for flag in ("seed=2", "model.layers=2", "user.note=x", "data.held_out=0.3"):
        assert run_directory_of(small_job(tmp_path, *base, flag)) != first


@pytest.mark.parametrize("flag", ["name", "experiment", "workspace"])
def test_a_directory_that_no_system_can_make_is_refused(tmp_path: Path, flag: str) -> None:
    for text in ("a" * 300, "a/" * 3000 if flag == "workspace" else "b" * 4000):
        job = small_job(tmp_path, f"{flag}={text}")
        with pytest.raises(SetpointError, match="at most 255 bytes") as caught:
            run_directory_of(job)
        assert len(str(caught.value)) < 500


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
    flags = ("duration=6 steps", "checkpoint.every=5")
    first, second = small_job(tmp_path, *flags), small_job(tmp_path, *flags, "optimizer.lr=0.5")
    run = train(first, until=3).directory
    with pytest.raises(SetpointError, match="--accept optimizer.lr has no effect: there is no run"):
        train(second, accept=["optimizer.lr"])
    assert train(second, directory=run, accept=["optimizer.lr"]).final_position.step == 6
    assert train(second).directory == run
    with pytest.raises(ContractRefused, match="saved      0.5"):
        train(first)


def test_a_run_recorded_before_a_field_was_declared_is_found_and_resumed(tmp_path: Path) -> None:
    oracle = train(small_job(tmp_path, "duration=6 steps", "name=whole")).directory
    job = small_job(tmp_path, "duration=6 steps")
    run = train(job, until=3).directory
    old = run.with_name(f"small-{remove_field(run, 'optimizer.eps')[:8]}")
    run.rename(old)
    resumed = train(job)
    assert (resumed.directory, resumed.started.step) == (old, 3)
    assert train_rows(old) == train_rows(oracle)
    event = events(old, "resume")[-1]
    assert event["accepted"] == []
    assert [(field["path"], field["right_origin"]) for field in event["added"]] == [
        ("optimizer.eps", "default")
    ]
    again = train(job)  # the record has the field now
    assert (again.directory, again.started.step) == (old, 6)
    assert "added" not in events(old, "resume")[-1]
    # Another value is a request.
    other = small_job(tmp_path, "duration=6 steps", "optimizer.eps=1e-6")
    remove_field(old, "optimizer.eps")
    assert find_run(other) != str(old)
    with pytest.raises(ContractRefused, match=r"optimizer.eps\n    saved      \(absent\)"):
        train(other, directory=old)


def test_a_longer_configuration_finds_the_run_and_names_what_to_type(tmp_path: Path) -> None:
    """The curve follows from the duration, so that it is another fingerprint and the same run."""
    short = train(small_job(tmp_path, "duration=4 steps")).directory
    other = train(small_job(tmp_path, "duration=4 steps", "optimizer.lr=0.5")).directory
    before = snapshot(short)
    with pytest.raises(ContractRefused) as caught:
        train(small_job(tmp_path, "duration=6 steps"))
    lines = str(caught.value).splitlines()
    assert lines[0] == (f"{short} cannot be resumed: 1 identity value differs from the record")
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


def test_a_longer_run_is_found_if_a_default_or_a_derived_value_is_typed(tmp_path: Path) -> None:
    run = train(small_job(tmp_path, "duration=2 steps")).directory
    dim = small_job(tmp_path).model.head_dim
    for flag in ("optimizer=adamw", "optimizer.eps=1e-8", f"model.head_dim={dim}"):
        assert find_run(small_job(tmp_path, "duration=3 steps", flag)) == str(run)
    for flag in ("optimizer=lion", "optimizer.eps=1e-7", f"model.head_dim={2 * dim}"):
        assert find_run(small_job(tmp_path, "duration=3 steps", flag)) != str(run)


def test_the_command_of_a_run_that_was_lengthened(tmp_path: Path) -> None:
    """It finds the directory by the name that the run began with, and says what became of it."""
    run = train(small_job(tmp_path, "duration=4 steps")).directory
    train(small_job(tmp_path, "duration=6 steps"), directory=run, accept=["schedule"])
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
        train(small_job(tmp_path, "duration=4 steps"), directory=run)
    assert str(caught.value).endswith(
        f"setpoint train {run}/config.toml --duration '4 steps' --name NAME"
    )
    assert snapshot(run) == before
