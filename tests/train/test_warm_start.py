"""Runs that start from the full state of another run's checkpoint, in whole or in part."""

from pathlib import Path

import pytest
import torch

from setpoint.checkpoint.loading import joined, load_directory
from setpoint.checkpoint.manifest import read_manifest
from setpoint.checkpoint.places import load_problems
from setpoint.config import ConfigError, SetpointError
from setpoint.ops.remote_run import RemoteRun
from setpoint.shapes.placed import in_memory
from setpoint.train.contract import refuse_resharding
from setpoint.train.run import rehearse, train
from tests.support.tensors import read

from ..checkpoint.stored import load as load_stored
from ..support.snapshots import refused
from .small import events, rows, small_job

BASE = ("model.layers=2", "schedule.horizon=8 steps", "checkpoint.keep=null")
TO_8 = (*BASE, "duration=8 steps")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 8 steps, with checkpoints at 4 and 8."""
    folder = tmp_path_factory.mktemp("source")
    train(small_job(folder, *TO_8), directory=folder / "run")
    return folder / "run"


def at_4(source: Path) -> str:
    return f"checkpoint.load={source / 'checkpoints' / 'step-00000004'}"


def tensors(run: Path, step: int) -> dict[str, torch.Tensor]:
    saved = load_stored(run / "checkpoints", step).tensors
    return read(joined(saved))


def refuse(folder: Path, *flags: str) -> None:
    """Start a run that is refused, with nothing written."""
    with refused() as caught:
        train(small_job(folder, *TO_8, *flags), directory=folder / "run")
    assert not (folder / "run" / "config.json").exists()
    assert caught.value.status == 2


def test_goes_on_bit_for_bit(source: Path, tmp_path: Path) -> None:
    outcome = train(small_job(tmp_path, *TO_8, at_4(source)), directory=tmp_path / "run")
    assert outcome.started.step == 4
    expected, found = tensors(source, 8), tensors(tmp_path / "run", 8)
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], each) for name, each in expected.items())
    assert rows(tmp_path / "run") == [row for row in rows(source) if row["step"] > 4]
    (event,) = events(tmp_path / "run", "load")
    assert (event["step"], event["weights"], event["parameters"]) == (4, 21, 21)
    assert event["not_loaded"] == {"entries": [], "weights": {}}
    assert events(tmp_path / "run", "start")[0]["step"] == 4
    # Its own checkpoints come first from now on, and what it was loaded from may be gone.
    job = small_job(tmp_path, *BASE, "duration=9 steps", "checkpoint.load=gone")
    with refused():
        train(job, directory=tmp_path / "run")
    longer = small_job(tmp_path, *BASE, "duration=9 steps", at_4(source))
    assert train(longer, directory=tmp_path / "run").started.step == 8


def test_a_run_means_its_latest(source: Path, tmp_path: Path) -> None:
    flags = (*BASE, "duration=9 steps", f"checkpoint.load={source}")
    assert dict(rehearse(small_job(tmp_path, *flags)))["state"] == "would start at step 8"
    assert train(small_job(tmp_path, *flags), directory=tmp_path / "run").started.step == 8
    refuse(tmp_path / "x", f"checkpoint.load={source}")


def test_leaves_out_what_is_excluded(source: Path, tmp_path: Path) -> None:
    exclude = 'checkpoint.exclude=["^output", "optimizer.feed_forward\\\\.", "loader", "position"]'
    flags = (*BASE, "duration=1 steps", "checkpoint.every=never", "optimizer.lr=1e-30")
    at_start = "checkpoint.at_start=true"
    train(small_job(tmp_path, *flags, at_start, at_4(source), exclude), directory=tmp_path / "run")
    fresh = small_job(tmp_path, *flags, at_start)
    train(fresh, directory=tmp_path / "fresh")
    saved = load_directory(tmp_path / "run" / "checkpoints" / "step-00000000")
    there, begun = tensors(source, 4), tensors(tmp_path / "fresh", 0)
    for name, tensor in saved.tensors["model"].items():
        origin = begun if name.startswith("output") else there
        assert torch.equal(in_memory(tensor), origin[f"model/{name}"]), name
    kept = {name.rpartition("/")[0] for name in saved.tensors["optimizer"]}
    assert "layers.0.attention.output.weight" in kept
    assert not any("feed_forward." in name or name.startswith("output") for name in kept)
    assert saved.state["position"]["step"] == 0
    assert saved.state["loader"]["sources"][""]["epoch_row"] == 0
    (event,) = events(tmp_path / "run", "load")
    assert event["not_loaded"]["entries"] == ["loader", "position"]
    assert event["not_loaded"]["weights"] == {"output.weight": "excluded"}
    assert set(event["optimizer_anew"].values()) == {"excluded"}


def test_weights_of_another_shape_are_refused_unless_excluded(source: Path, tmp_path: Path) -> None:
    other = (at_4(source), "model.ffn_dim=24")
    refuse(tmp_path / "x", *other)
    exclude = r'checkpoint.exclude=["feed_forward\\."]'
    train(small_job(tmp_path, *TO_8, *other, exclude), directory=tmp_path / "run")
    (event,) = events(tmp_path / "run", "load")
    reasons = event["not_loaded"]["weights"]
    assert reasons and all(each.startswith("excluded, (") for each in reasons.values()), reasons


def test_a_pattern_that_is_found_nowhere_is_an_error(source: Path, tmp_path: Path) -> None:
    for pattern in ("outptu", "optimizer.norms"):
        refuse(tmp_path, at_4(source), f'checkpoint.exclude=["{pattern}"]')
    with refused(ConfigError):
        small_job(tmp_path, 'checkpoint.exclude=["optimizer"]')


def test_another_optimizer_needs_a_new_state(source: Path, tmp_path: Path) -> None:
    other = (at_4(source), "optimizer=lion")
    refuse(tmp_path / "x", *other)
    job = small_job(tmp_path, *TO_8, *other, 'checkpoint.exclude=["optimizer"]')
    assert train(job, directory=tmp_path / "run").started.step == 4


def test_other_rows_need_another_place(source: Path, tmp_path: Path) -> None:
    refuse(tmp_path / "x", at_4(source), "batch.sequence_length=8")
    other = (at_4(source), "data.sources.0.documents=30")
    refuse(tmp_path / "x", *other)
    train(
        small_job(tmp_path, *TO_8, *other, 'checkpoint.exclude=["loader"]'),
        directory=tmp_path / "run",
    )


def test_frozen_parts_may_differ(source: Path, tmp_path: Path) -> None:
    frozen = 'optimizer.frozen=["embedding"]'
    train(small_job(tmp_path, *TO_8, at_4(source), frozen), directory=tmp_path / "frozen")
    (event,) = events(tmp_path / "frozen", "load")
    assert event["optimizer_not_used"] == ["embedding.weight"]
    flags = (*BASE, "duration=9 steps", f"checkpoint.load={tmp_path / 'frozen'}")
    train(small_job(tmp_path, *flags), directory=tmp_path / "thawed")
    (event,) = events(tmp_path / "thawed", "load")
    assert event["optimizer_anew"] == {"embedding.weight": "not trained there"}
    before, after = tensors(tmp_path / "frozen", 8), tensors(tmp_path / "thawed", 9)
    assert torch.equal(
        before["model/embedding.weight"], tensors(source, 4)["model/embedding.weight"]
    )
    assert not torch.equal(before["model/embedding.weight"], after["model/embedding.weight"])
    assert "optimizer/embedding.weight/exp_avg" in after


def test_a_run_of_its_own_may_freeze_others_by_name(tmp_path: Path) -> None:
    train(small_job(tmp_path, *BASE, "duration=4 steps"), directory=tmp_path / "run")
    frozen = small_job(tmp_path, *BASE, "duration=6 steps", 'optimizer.frozen=["embedding"]')
    train(frozen, directory=tmp_path / "run", accept=["optimizer.frozen"])
    assert "optimizer/embedding.weight/exp_avg" not in tensors(tmp_path / "run", 6)
    back = small_job(tmp_path, *BASE, "duration=8 steps")
    train(back, directory=tmp_path / "run", accept=["optimizer.frozen"])
    assert "optimizer/embedding.weight/exp_avg" in tensors(tmp_path / "run", 8)
    log = (tmp_path / "run" / "logs" / "rank-0.log").read_text()
    assert "optimizer state not used: embedding.weight (frozen now)" in log
    assert "optimizer state reset for: embedding.weight (frozen before)" in log


def test_weights_alone_need_a_new_optimizer(tmp_path: Path) -> None:
    train(
        small_job(tmp_path, *BASE, "duration=4 steps", "checkpoint.last=weights"),
        directory=tmp_path / "a",
    )
    load = f"checkpoint.load={tmp_path / 'a'}"
    refuse(tmp_path / "x", load)
    job = small_job(tmp_path, *TO_8, load, 'checkpoint.exclude=["optimizer"]')
    assert train(job, directory=tmp_path / "run").started.step == 4


def test_starts_again_from_the_same_checkpoint_only(source: Path, tmp_path: Path) -> None:
    run = tmp_path / "a"
    train(small_job(tmp_path, *BASE, "duration=4 steps"), directory=run)
    job = small_job(tmp_path, *TO_8, f"checkpoint.load={run}", "checkpoint.last=none",
                    "checkpoint.every=never")  # fmt: skip
    train(job, directory=tmp_path / "run")
    log = tmp_path / "run" / "events.jsonl"
    # As if it had been killed before the end.
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if '"end"' not in line))
    train(small_job(tmp_path, *BASE, "duration=5 steps"), directory=run)
    with refused():
        train(job, directory=tmp_path / "run")


def test_a_run_that_was_stopped_early_counts_anew(tmp_path: Path) -> None:
    stopping = ("evaluation.every=1 steps", "evaluation.early_stopping={patience: 1}",
                "optimizer.lr=1e-30")  # fmt: skip
    outcome = train(small_job(tmp_path, *TO_8, *stopping), directory=tmp_path / "a")
    assert outcome.reason is not None and outcome.final_position.step < 8
    load = f"checkpoint.load={tmp_path / 'a'}"
    with pytest.raises(SetpointError, match=r"\nValid: add evaluation to checkpoint\.exclude"):
        train(small_job(tmp_path, *TO_8, *stopping, load), directory=tmp_path / "x")
    job = small_job(tmp_path, *TO_8, *stopping, load, 'checkpoint.exclude=["evaluation"]')
    assert train(job, directory=tmp_path / "run").final_position.step > outcome.final_position.step


def test_check_looks_for_what_is_to_be_loaded(source: Path) -> None:
    for end, said in (
        ("s", f"Did you mean {source}?"),
        ("/logs", "neither a checkpoint nor a run that has one"),
        ("/..", f"it contains runs, such as {source}/../"),
        ("/checkpoints/step-00000005", "there is no checkpoint step-00000005"),
    ):
        job = small_job(source.parent, f"checkpoint.load={source}{end}")
        (problem,) = load_problems(job.checkpoint)
        assert problem.path == "load" and said in problem.message


def test_the_division_is_compared_where_it_must_be_the_same(source: Path, tmp_path: Path) -> None:
    two = small_job(tmp_path, *TO_8, "parallel.world_size=2", "parallel.shard=2",
                    without=("accumulation",))  # fmt: skip
    with refused():
        refuse_resharding(str(source), two)
    refuse_resharding(str(source), small_job(tmp_path, *TO_8))


def test_from_a_url(source: Path, tmp_path: Path) -> None:
    folder = source / "checkpoints"
    run = RemoteRun(f"file://{tmp_path}/bucket/first")
    for step in (4, 8):
        run.send(folder / f"step-{step:08}", read_manifest(folder / f"step-{step:08}"))
    flags = (*TO_8, f"checkpoint.load={run.url}/checkpoints/step-00000004")
    assert dict(rehearse(small_job(tmp_path, *flags)))["state"] == "would start at step 4"
    assert not (tmp_path / "run").exists()
    assert train(small_job(tmp_path, *flags), directory=tmp_path / "run").started.step == 4
    expected, found = tensors(source, 8), tensors(tmp_path / "run", 8)
    assert all(torch.equal(found[name], each) for name, each in expected.items())
    assert not (tmp_path / "run" / "fetched").exists()
    (event,) = events(tmp_path / "run", "load")
    assert event["checkpoint"] == f"{run.url}/checkpoints/step-00000004"
    refuse(tmp_path / "x", f"checkpoint.load={run.url}")
    assert not (tmp_path / "x" / "run" / "fetched").exists()
    refuse(tmp_path / "y", f"checkpoint.load=file://{tmp_path}/bucket/second")
    (problem,) = load_problems(small_job(tmp_path, "checkpoint.load=ftpx://host/run").checkpoint)
    assert "unknown protocol, ftpx" in problem.message
