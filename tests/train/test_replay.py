"""A step of a run that is run again, and the batches that are kept for it."""

import json
import math
from pathlib import Path

import pytest
import torch

from setpoint.cli.main import main
from setpoint.cli.reproduce import for_one_process
from setpoint.config import RunError
from setpoint.ops.bad_batches import read_bad_batch
from setpoint.ops.replay import Numbers, Replayed, replay
from setpoint.track.run_directory import BAD_BATCHES, RunDirectory
from setpoint.train.build.components import build_components
from setpoint.train.loop import Callback, Loop
from setpoint.train.run import train

from ..support.snapshots import refused
from .poison import Poison
from .small import events, rows, small_job

FLAGS = ("duration=9 steps", "evaluation=null", "checkpoint.keep=null")


def again(run: Path, step: int, *flags: str, from_data: bool = False) -> Replayed:
    job = for_one_process(small_job(run.parent.parent, *FLAGS, *flags))
    return replay(job, RunDirectory(run, None, False), step, from_data, print)


def recorded(run: Path, step: int) -> Numbers:
    (row,) = (row for row in rows(run) if row["kind"] == "train" and row["step"] == step)
    return Numbers(row["loss"], row["cross_entropy"], row["grad_norm"])


def files(run: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in run.rglob("*")}


FAILING = ("checkpoint.every=1", "schedule=constant")


def test_a_step_with_gradients_that_are_not_finite_is_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Step 1 makes weights of 1e30, with which step 2 has a loss and no gradients."""
    with pytest.raises(RunError, match=r"step 2: the loss is 5\..* and the gradient norm nan"):
        train(small_job(tmp_path, *FLAGS, *FAILING, "optimizer.lr=1e30"))
    (run,) = tmp_path.glob("runs/*")
    before = files(run)
    assert main(["replay", str(run), "2"]) == 0
    told = capsys.readouterr().out
    assert "step 2 from the checkpoint of step 1, with the batch kept by the run\nloss: 5." in told
    assert "\ngradient norm: nan, as recorded\n" in told
    # Of the gradients, which are computed from the end on.
    assert "\nfirst gradient of an output that is not finite: layers.0 (Block)\n" in told
    assert (
        "anomaly: Function '_RMSNormFunctionBackward' returned nan values in its 0th output.\n"
        in told
    )
    assert "\n  File " in told and "block_modules.py" in told and "objective.py" not in told
    assert files(run) == before
    for word, said in (("9", "has no step 9.\nValid: 1 to 2"), ("x", "x is not a step")):
        assert main(["replay", str(run), word]) == 2
        assert said in capsys.readouterr().err


def test_outputs_that_are_not_finite_are_named_for_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RunError):
        train(small_job(tmp_path, *FLAGS, *FAILING, "optimizer.lr=1e39"))
    (run,) = tmp_path.glob("runs/*")
    assert main(["replay", str(run), "2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["checkpoint"], answer["batch"]) == (1, "kept")
    assert answer["found"]["loss"] == answer["recorded"]["loss"] == "NaN"
    assert answer["first_non_finite"]["output"] == "embedding"
    modules = {each["name"]: each for each in answer["modules"]}
    assert modules["embedding"]["weight"]["non_finite"] > 0
    assert modules["norm"]["output"]["min"] is None


def test_any_step_is_reached_from_a_checkpoint_also_behind_a_rollback(
    tmp_path: Path, poison: Poison
) -> None:
    """To the bit. The batch of step 7 is bad: what is step 7 then is the batch after it."""
    flags = ("resilience.non_finite=rollback", "memory.activation_checkpointing=full")
    job = small_job(tmp_path, *FLAGS, *flags)
    poison(7)
    run = train(job).directory
    for step in (3, 6, 9):
        done = again(run, step, *flags)
        assert done.numbers == done.recorded == recorded(run, step)
        assert done.start == (step - 1) // 4 * 4 and not done.is_kept and not done.first
    kept = read_bad_batch(run, 7)
    components = build_components(job)
    taken = [components.feed.take() for _ in range(7)][-1]
    assert kept is not None and kept.facts["cause"] == "non_finite"
    ((_, batches),) = kept.shares
    for one, other in zip(batches, taken.batches, strict=True):
        assert torch.equal(one.inputs, other.inputs) and torch.equal(one.targets, other.targets)
    done = again(run, 7, *flags)
    assert done.is_kept and math.isfinite(done.numbers.loss)  # the poison was in the objective
    done = again(run, 7, *flags, from_data=True)
    assert done.numbers == recorded(run, 7)


def test_a_batch_kept_after_a_resume_is_reached_by_the_data_that_a_rollback_left(
    tmp_path: Path, poison: Poison
) -> None:
    class Crash(Callback):
        def rewound(self, loop: Loop) -> None:
            raise RuntimeError("a crash")

    job = small_job(tmp_path, *FLAGS, "resilience.non_finite=rollback", "duration=6 steps")
    poison(6)
    with pytest.raises(RuntimeError, match="a crash"):
        train(job, callbacks=[Crash()])
    poison(6, 8)
    run = train(job).directory
    (rollback, _) = events(run, "rollback")
    kept = read_bad_batch(run, 6)
    assert kept is not None and kept.facts["rewound"] == {"step": 4, "data": rollback["data"]}


def test_a_run_that_was_loaded_from_another_is_reached_from_its_start(tmp_path: Path) -> None:
    first = train(small_job(tmp_path, *FLAGS)).directory
    flags = (f"checkpoint.load={first}", "checkpoint.every=never", "name=second",
             "duration=11 steps", "optimizer.frozen=['^embedding']",
             "batch.ramp={start: 2, increment: 2, over: 20 steps}")  # fmt: skip
    run = train(
        small_job(tmp_path, *FLAGS, *flags), directory=tmp_path / "runs" / "second"
    ).directory
    done = again(run, 11, *flags)
    assert done.numbers == recorded(run, 11) and not done.is_kept


def test_as_many_as_asked_for_are_kept_and_damage_is_said(tmp_path: Path, poison: Poison) -> None:
    poison(2, 4, 5, 8)
    flags = ("resilience.non_finite=skip", "resilience.bad_batches=2")
    run = train(small_job(tmp_path, *FLAGS, *flags)).directory
    folders = sorted(each.name for each in (run / BAD_BATCHES).iterdir())
    assert folders == ["step-00000005", "step-00000008"]
    (held,) = (run / BAD_BATCHES / folders[0]).glob("batch-0.*.safetensors")
    held.write_bytes(held.read_bytes()[:99])
    with refused():
        again(run, 5, *flags)


def test_a_step_between_two_rows_names_them(tmp_path: Path) -> None:
    flags = ("tracking.every=3 steps",)
    run = train(small_job(tmp_path, *FLAGS, *flags)).directory
    words = "metrics were written at tracking.every = 3 steps; the nearest with a row: "
    assert again(run, 5, *flags).unrecorded == f"{words}3 and 6"
    assert again(run, 1, *flags).unrecorded == f"{words}3"
    assert not again(run, 6, *flags).unrecorded


def test_of_several_ranks_one_process_runs_all_micro_batches(tmp_path: Path) -> None:
    flags = ("parallel.world_size=2", "parallel.shard=2", "compile={}")
    job = small_job(tmp_path, *FLAGS, *flags)
    one = for_one_process(job)
    assert (one.parallel.world_size, one.parallel.shard, one.compile) == (1, 1, None)
    assert one.batch.accumulation == 2 * job.batch.accumulation
