"""The rows of `test_config_effects.py` for what a run is loaded from."""

from __future__ import annotations

from pathlib import Path

import pytest

from setpoint.config import resolve
from setpoint.train import opening
from setpoint.train.config import Job
from setpoint.train.run import train

from .small import small_job

LOAD = "checkpoint.load={tmp}/loaded"


def started_at(job: Job) -> int:
    """The step that a run starts at."""
    return train(job).started.step


def resumed_on_two_ranks(job: Job) -> str:
    """What is said to a run of one rank that goes on on two; nothing if that is fine."""
    run = train(job).directory
    draft = job.evolve()
    draft.parallel.world_size = draft.parallel.shard = 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "launched", lambda: 2)
        opening.compare(resolve(draft), run, ())
    return "resumes"


def left_out(job: Job) -> bool:
    """Whether a checkpoint lacks frozen parameters."""
    return (train(job).directory / "checkpoints" / "step-00000004" / "base.json").exists()


# The override, the function that sees its effect, what is set on both sides, what is seen with it,
# and what is left out of the file.
LOAD_ROWS = {
    "Checkpoint.load": (LOAD, started_at, (), 2),
    "Checkpoint.exclude": ("checkpoint.exclude=[position]", started_at, (LOAD,), 0),
    "Checkpoint.resharding": (
        "checkpoint.resharding=refuse",
        resumed_on_two_ranks,
        ("batch.global_size=4", "batch.micro_size=2"),
        "refused: SetpointError",
        ("accumulation",),
    ),
    "Checkpoint.save_frozen": (
        "checkpoint.save_frozen=false",
        left_out,
        ("model.pretrained={tmp}/loaded", "optimizer.frozen=['^layers']"),
        True,
    ),
}


def prepare_loaded(folder: Path) -> None:
    """Make the run that rows name."""
    if not (folder / "loaded").exists():
        small = ("duration=2 steps", "model.dropout=0", "schedule.horizon=4 steps")
        train(small_job(folder / "first", *small), folder / "loaded")
