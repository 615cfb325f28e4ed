"""Run by test_row_metrics.py in a process of its own: two ranks measure the norms that one does."""

import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from setpoint.parallel.world import World
from setpoint.train.build.components import build_components
from setpoint.train.config import Job

from ..support.ranks import fork_group
from .small import loop_of, small_job

WORLD, STEPS = 2, 2
COMMON = (
    f"duration={STEPS} steps", "model.dropout=0", "model.layers=2", "evaluation=null",
    "model.tie_embeddings=true", "optimizer.clip_norm=0.01",
    "tracking.metrics.grad_norms=[groups, layers]",
    "tracking.metrics.param_norms=[model, groups, layers]",
    "tracking.metrics.update_ratios=[model, groups, layers]",
)  # fmt: skip
SHAPES = (
    ("parallel.replicate=2", "batch.micro_size=1"),
    ("parallel.shard=2", "batch.micro_size=1"),
    ("parallel.tensor=2",),
    ("parallel.pipeline=2",),
)


def measured(job: Job, world: World | None = None) -> list[dict[str, Any]]:
    """The norms of each step."""
    loop = loop_of(job, components=build_components(job, world=world))
    found: list[dict[str, Any]] = []
    assert loop.engine.norms is not None
    for _ in range(STEPS):
        norm = loop.step().grad_norm
        found.append({"grad_norm": norm, **loop.engine.norms.columns()})
    return found


def check(rank: int, store: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alone = measured(small_job(folder, *COMMON), World(torch.device("cpu")))
        for shape in SHAPES:
            ranks = (f"parallel.world_size={WORLD}", *shape)
            for one, two in zip(alone, measured(small_job(folder, *COMMON, *ranks)), strict=True):
                assert one.keys() == two.keys()
                for key, value in one.items():
                    numbers = value if isinstance(value, list) else [value]
                    others = two[key] if isinstance(value, list) else [two[key]]
                    for a, b in zip(numbers, others, strict=True):
                        assert math.isclose(a, b, rel_tol=1e-5), (shape, key, value, two[key])


if __name__ == "__main__":
    sys.exit(fork_group(check, WORLD))
