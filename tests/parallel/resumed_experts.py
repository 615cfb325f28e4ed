"""Run by test_equal.py in a process of its own: an adapter of experts goes on on other ranks.

Its arguments are how experts lie before and after the resume, as degrees; `1` is one rank; then
other flags of the job.
"""

import sys
import tempfile
from math import prod
from pathlib import Path

import torch
from torch import nn

from setpoint.infer.adopt import complete
from setpoint.infer.config import EvaluationTask, Inference, InferenceWeights
from setpoint.infer.loaded_model import load
from setpoint.parallel.config import AXES
from setpoint.train.run import train

from ..support.ranks import fork, group_of
from ..train.small import rows, small_job

STEPS = 6
COMMON = (
    "model.dropout=0", "model.layers=2", "model.moe={experts: 4, load_sequences: 1}",
    "model.moe.router=sigmoid_top_k", "batch.global_size=4", "batch.accumulation=1",
    "checkpoint.every=3 steps", "evaluation.sequences=5", "parallel.device=cpu",
)  # fmt: skip


def run(folder: Path, degrees: str, steps: int, more: tuple[str, ...]) -> int:
    """Train to a step on as many ranks as the degrees ask for."""
    given = dict(each.split("=") for each in degrees.split(",") if "=" in each)
    world = prod(int(degree) for axis, degree in given.items() if axis in AXES)
    flags = [f"parallel.{each}" for each in degrees.split(",") if world > 1]
    job = small_job(
        folder, *COMMON, *more, f"duration={steps} steps", f"schedule.horizon={STEPS} steps",
        f"parallel.world_size={world}", *flags, without=("micro_size",),
    )  # fmt: skip

    def one_rank(rank: int, store: str) -> None:
        with group_of(rank, world, store):
            train(job, folder / "run")

    return fork(one_rank, world)


def merged(run: Path, step: int) -> nn.Module:
    """The model of a checkpoint, with its adapter merged if it has one."""
    weights = InferenceWeights(path=str(run), checkpoint=step)
    return load(complete(Inference(weights=weights, evaluation=EvaluationTask()))).model


def main(before: str, after: str, *more: str) -> int:
    with tempfile.TemporaryDirectory() as place:
        whole, parts = Path(place) / "whole", Path(place) / "parts"
        for folder in (whole, parts):
            folder.mkdir()
        status = run(whole, "1", STEPS, more) or run(parts, before, 3, more)

        def loads(rank: int, store: str) -> None:
            """One process takes the weights out of what several have written."""
            one, other = (merged(folder / "run", 3).state_dict() for folder in (whole, parts))
            torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-4)

        status = status or fork(loads, 1) or run(parts, after, STEPS, more)
        if status:
            return status
        expected, found = (rows(folder / "run") for folder in (whole, parts))
        for one, other in zip(expected, found, strict=True):
            for name in ("loss", "grad_norm", "eval_loss", "expert_load"):
                if name in one:
                    torch.testing.assert_close(other[name], one[name], rtol=1e-5, atol=1e-5)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
