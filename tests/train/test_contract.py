"""Differences that a resume allows, and those that it refuses with nothing changed."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

from setpoint.config import ConfigError, RunError, SetpointError
from setpoint.config.composition import compose
from setpoint.config.record.record import read_record
from setpoint.train.config import Job
from setpoint.train.contract import ContractRefused, check_contract, describe_accepted
from setpoint.train.run import Run, train
from setpoint.train.run_name import find_run

from ..support.snapshots import refused
from .small import essence, events, rows, small_job, snapshot, train_rows


def resume(run: Path, *flags: str) -> Run:
    """Do as `setpoint train RUN_DIRECTORY FLAGS`."""
    draft, _ = read_record(Job, str(run))
    return train(compose(Job, draft, flags=flags).resolve(), directory=run)


@pytest.mark.parametrize(
    "flags",
    [["optimizer.lr=0.5"], ["batch.global_size=8", "batch.accumulation=4"], ["user.note=x"]],
    ids=lambda flags: flags[0],
)
def test_another_identity_is_refused_and_nothing_changes(run: Path, flags: list[str]) -> None:
    before = snapshot(run)
    with refused() as caught:
        resume(run, *flags)
    assert caught.value.status == 2
    assert snapshot(run) == before


def test_longer_with_a_constant_schedule_trains_on(tmp_path: Path, run: Path) -> None:
    before = rows(run)
    outcome = resume(run, "duration=12 steps")
    assert (outcome.started.step, outcome.final_position.step, outcome.status) == (6, 12, 0)
    # What was logged stays; the rest is what a run of twelve steps from the start logs.
    assert rows(run)[: len(before)] == before
    (event,) = events(run, "resume")
    (accepted,) = [d for d in event["accepted"] if d["role"] == "budget"]
    assert (accepted["path"], accepted["left"], accepted["right"], accepted["right_origin"]) == (
        "duration", "6 steps", "12 steps", "command line duration",
    )  # fmt: skip
    whole = small_job(tmp_path, "duration=12 steps", "schedule=constant", "name=whole")
    oracle = train(whole).directory
    ours, theirs = essence(run), essence(oracle)
    for key in theirs:
        if key.startswith("latest"):
            assert ours[key] == theirs[key]
    # From now on the longer duration is what the record says.
    assert resume(run).final_position.step == 12
    assert events(run, "resume")[-1]["accepted"] == []


def test_the_accepted_budget_is_told(run: Path) -> None:
    draft, _ = read_record(Job, str(run))
    job = compose(Job, draft, flags=["duration=9 steps", "tracking.every=2 steps"]).resolve()
    accepted = check_contract(str(run), job)
    assert {item.path for item in accepted.differences} == {"duration", "tracking.every"}
    assert describe_accepted(accepted) == [
        "accepted: duration: 6 steps -> 9 steps (from command line duration)",
        "run-time settings that changed: tracking.every: 1 step -> 2 steps",
    ]


def test_longer_with_a_cosine_needs_the_recorded_horizon(tmp_path: Path) -> None:
    run = train(small_job(tmp_path, "duration=6 steps")).directory
    before = snapshot(run)
    with refused():
        resume(run, "duration=9 steps")
    assert snapshot(run) == before
    assert resume(run, "duration=9 steps", "schedule.horizon=6").final_position.step == 9
    # After the horizon the floor stays.
    lrs = [row["lr"] for row in train_rows(run)][6:]
    assert lrs == [pytest.approx(0.01 * 0.1)] * 3
    # The record says so from now on: no flag is needed any more.
    assert resume(run, "duration=10 steps").final_position.step == 10


def test_the_hint_about_a_horizon_by_its_share_can_be_typed(tmp_path: Path) -> None:
    run = train(small_job(tmp_path, "duration=6 steps", "schedule.horizon_share=0.5")).directory
    with pytest.raises(SetpointError) as caught:
        resume(run, "duration=9 steps")
    _, _, hint = str(caught.value).partition("learning-rate curve, add ")
    flags = shlex.split(hint.removesuffix("."))
    words = [f"{path[2:]}={value}" for path, value in zip(flags[::2], flags[1::2], strict=True)]
    assert words == ["schedule.horizon=3 steps", "schedule.horizon_share=null"]
    assert resume(run, "duration=9 steps", *words).final_position.step == 9


def test_what_moves_a_plateau_may_not_change(tmp_path: Path) -> None:
    """Evaluations are a run-time setting where they only look on; here the rate follows them."""
    flags = ("duration=6 steps", "schedule=plateau", "evaluation.every=2 steps")
    run = train(small_job(tmp_path, *flags)).directory
    before = snapshot(run)
    with refused():
        resume(run, "duration=9 steps", "evaluation.sequences=3")
    assert snapshot(run) == before
    # Another evaluation that only looks on may come and go, also here.
    web = "evaluation.datasets=[{name: web, sources: [{type: random, documents: 9}]}]"
    assert resume(run, "duration=8 steps", web).final_position.step == 8
    draft, _ = read_record(Job, str(run))
    job = compose(Job, draft, flags=["duration=9 steps", "evaluation.sequences=3"]).resolve()
    assert train(job, directory=run, accept=["schedule.evaluated_on"]).final_position.step == 9


def test_a_run_keeps_counting_the_load_of_experts(tmp_path: Path) -> None:
    """The number of sequences follows from the micro-batch, and that from the ranks."""
    flags = ("schedule=constant", "model.moe.experts=4")
    run = train(small_job(tmp_path, *flags, "duration=4 steps")).directory
    larger = ("batch.micro_size=4", "batch.accumulation=1")
    other = small_job(tmp_path, *flags, *larger, "duration=6 steps")
    assert find_run(other) == str(run)
    resumed = train(other)
    assert (resumed.directory, resumed.final_position.step) == (run, 6)
    assert json.loads((run / "config.json").read_text())["model"]["moe"]["load_sequences"] == 2
    assert resume(run, *larger, "duration=8 steps").final_position.step == 8
    smaller = ("batch.micro_size=1", "batch.accumulation=4")
    with refused(ConfigError):
        resume(run, *smaller, "duration=9 steps")
    with refused(ConfigError):
        train(small_job(tmp_path, *flags, *smaller))
    given = (*smaller, "model.moe.load_sequences=1", "duration=2 steps")
    assert train(small_job(tmp_path, *flags, *given)).directory != run


def test_a_problem_tells_what_was_recorded_from_what_is_typed(tmp_path: Path) -> None:
    run = train(small_job(tmp_path, "duration=1 steps", "batch.global_size=4")).directory
    draft, _ = read_record(Job, str(run))
    with pytest.raises(ConfigError) as caught:
        compose(Job, draft, flags=["parallel.world_size=3"]).resolve()
    (problem,) = caught.value.problems
    assert (problem.path, problem.origin) == (
        "batch.global_size",
        "the record: command line batch.global_size",
    )
    assert "parallel.world_size = 3 (command line parallel.world_size)" in problem.also


def test_run_time_settings_may_change(run: Path) -> None:
    outcome = resume(
        run, "duration=10 steps", "checkpoint.every=1 steps", "checkpoint.keep=null",
        "evaluation=null", "tracking.every=5 steps",
    )  # fmt: skip
    assert outcome.final_position.step == 10
    names = {path.name for path in (run / "checkpoints").glob("step-*")}
    assert {f"step-{step:08d}" for step in range(7, 11)} <= names
    later = [row for row in rows(run) if row["step"] > 6]
    assert [(row["kind"], row["step"]) for row in later] == [("train", 10)]


def test_a_moved_run_goes_on(tmp_path: Path, run: Path) -> None:
    stopped = train(small_job(tmp_path, "name=whole", "duration=12 steps", "schedule=constant"))
    moved = tmp_path / "elsewhere" / "renamed"
    moved.parent.mkdir()
    shutil.move(run, moved)
    outcome = resume(moved, "duration=12 steps")
    assert outcome.directory == moved
    assert (outcome.started.step, outcome.final_position.step) == (6, 12)
    weights = "latest model.safetensors"
    assert essence(moved)[weights] == essence(stopped.directory)[weights]
    assert not run.exists()


def test_never_refuses_checkpoints(run: Path) -> None:
    before = snapshot(run)
    with refused():
        resume(run, "checkpoint.resume=never")
    assert snapshot(run) == before


def test_must_refuses_a_new_directory_and_makes_none(tmp_path: Path) -> None:
    job = small_job(tmp_path, "duration=2 steps", "checkpoint.resume=must")
    with refused():
        train(job)
    assert not (tmp_path / "runs").exists()


def test_a_budget_may_grow_and_not_shrink(run: Path) -> None:
    before = snapshot(run)
    for duration in ("3 steps", "[5 steps, 1 days]", "100 tokens"):
        with refused():
            resume(run, f"duration={duration}")
    assert snapshot(run) == before
    assert resume(run, "duration=1 days, 7 steps").final_position.step == 7


def test_what_was_logged_stays_while_a_session_logs_nothing(tmp_path: Path) -> None:
    flags = ("schedule=constant", "name=quiet", "evaluation=null")
    first = train(small_job(tmp_path, *flags, "duration=5 steps")).directory
    before = (first / "metrics.jsonl").read_bytes()
    train(small_job(tmp_path, *flags, "duration=8 steps", "tracking.trackers=[]"))
    assert (first / "metrics.jsonl").read_bytes() == before
    train(small_job(tmp_path, *flags, "duration=11 steps"))
    assert (first / "metrics.jsonl").read_bytes().startswith(before)
    assert [row["step"] for row in rows(first)] == [1, 2, 3, 4, 5, 9, 10, 11]


def test_a_refused_resume_repeats_the_values_typed_after_the_directory(run: Path) -> None:
    """Ranks of torchrun report it without the command that was typed."""
    base = compose(Job, read_record(Job, str(run))[0], flags=["optimizer.lr=0.5"])
    with pytest.raises(ContractRefused) as caught:
        check_contract(str(run), base.resolve(), given=True)
    assert caught.value.command.endswith(" --optimizer.lr 0.5 --accept optimizer.lr")


def test_a_run_is_not_renamed_while_its_directory_is_given(run: Path) -> None:
    before = snapshot(run)
    for flag in ("name=other", "experiment=x", "workspace=elsewhere"):
        with refused():
            resume(run, flag)
    assert snapshot(run) == before


def test_origins_outlive_a_resume(run: Path) -> None:
    """The record says where a value first came from, however often the run is resumed."""
    before = json.loads((run / "origins.json").read_text())
    resume(run, "duration=7 steps")
    resume(run, "duration=8 steps")
    after = json.loads((run / "origins.json").read_text())
    layers = after.pop("duration")["layers"]
    before.pop("duration")
    assert after == before
    assert [layer["value"] for layer in layers][-2:] == ["7 steps", "8 steps"]


def test_a_seed_is_drawn_once(tmp_path: Path) -> None:
    job = small_job(tmp_path, "seed=null", "duration=2 steps")
    assert job.seed is None
    run = train(job).directory
    seed = json.loads((run / "config.json").read_text())["seed"]
    assert isinstance(seed, int)
    assert train(small_job(tmp_path, "seed=null", "duration=2 steps")).directory != run


def test_a_failed_restore_leaves_the_record_alone(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RunError("no such device")

    monkeypatch.setattr("setpoint.train.resume.restore", refuse)
    config = (run / "config.json").read_bytes()
    with refused(RunError):
        resume(run, "duration=9 steps")
    assert (run / "config.json").read_bytes() == config
