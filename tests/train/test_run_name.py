"""Names of run directories, and how a run is found again by its configuration."""

from pathlib import Path

import pytest

from setpoint.config.record.record import fingerprint
from setpoint.train import run_name
from setpoint.train.contract import ContractRefused
from setpoint.train.run import train
from setpoint.train.run_name import find_run, run_directory_of

from ..support.records import remove_field
from ..support.snapshots import refused
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


@pytest.mark.parametrize(
    ("flag", "text"),
    [("name", "a" * 300), ("experiment", "b" * 300), ("workspace", "c/" * 3000)],
    ids=["name", "experiment", "workspace"],
)
def test_a_directory_that_no_system_can_make_is_refused(
    tmp_path: Path, flag: str, text: str
) -> None:
    job = small_job(tmp_path, "workspace=w", f"{flag}={text}")
    with refused():
        run_directory_of(job)


def test_a_run_set_aside_under_another_name_is_not_found(tmp_path: Path) -> None:
    run = train(small_job(tmp_path, "duration=2 steps")).directory
    run.rename(run.with_name(f"{run.name}.old"))
    assert train(small_job(tmp_path, "duration=3 steps")).started.step == 0


def test_a_damaged_record_beside_a_run_is_passed_over(tmp_path: Path) -> None:
    first = small_job(tmp_path, "duration=2 steps")
    place = str(train(first).directory)
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
    with refused():
        train(second, accept=["optimizer.lr"])
    assert train(second, directory=run, accept=["optimizer.lr"]).final_position.step == 6
    assert train(second).directory == run
    with refused(ContractRefused):
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
    with refused(ContractRefused):
        train(other, directory=old)


def test_a_longer_configuration_finds_the_run_and_names_what_to_type(tmp_path: Path) -> None:
    """The curve follows from the duration, so that it is another fingerprint and the same run."""
    short = train(small_job(tmp_path, "duration=4 steps")).directory
    other = train(small_job(tmp_path, "duration=4 steps", "optimizer.lr=0.5")).directory
    before = snapshot(short)
    with refused(ContractRefused):
        train(small_job(tmp_path, "duration=6 steps"))
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
    with refused():
        train(small_job(tmp_path, "duration=4 steps"))
    assert train(small_job(tmp_path, "duration=4 steps", "name=again")).final_position.step == 4
    # Where the directory was given, a name would have no effect.
    with refused():
        train(small_job(tmp_path, "duration=4 steps"), directory=run)
    assert snapshot(run) == before
