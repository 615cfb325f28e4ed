"""Configurations for many ranks on one: accepted where an axis takes the ranks that are left."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from setpoint.config import ConfigError, resolve
from setpoint.parallel.config import Parallel
from setpoint.parallel.world import World, reader_of
from setpoint.train.run import train

from ..train.small import small_job

OPTIONS = {
    "shard": (
        "reshard=2",
        "sharding.accumulation=unsharded",
        "sharding.layers_per_unit=2",
        "sharding.forward_prefetch=2",
        "sharding.offload=true",
    ),
    "replicate": ("bucket_size=5", "engine=deepspeed"),
    "ring": ("ring_split=contiguous",),
    "tensor": ("loss_parallel=true",),
    "pipeline": ("pipelining.schedule=gpipe",),
}
CASES = [(axis, option) for axis, options in OPTIONS.items() for option in options]


@pytest.mark.parametrize(("axis", "option"), CASES)
def test_a_file_for_many_ranks_is_accepted_on_one(tmp_path: Path, axis: str, option: str) -> None:
    job = small_job(tmp_path, f"parallel.{axis}=-1", f"parallel.{option}")
    assert job.parallel.world_size == 1


@pytest.mark.parametrize(
    ("axis", "option"),
    [case for case in CASES if case[1] != "engine=deepspeed"],
)
def test_an_axis_of_one_rank_leaves_an_option_dead(tmp_path: Path, axis: str, option: str) -> None:
    with pytest.raises(ConfigError, match="has no effect|no proper divisor"):
        small_job(tmp_path, f"parallel.{axis}=1", f"parallel.{option}")


def test_one_rank_reads_weights_as_many_are_to(tmp_path: Path) -> None:
    given = resolve(Parallel(load_weights="broadcast"))
    assert reader_of(given, World(torch.device("cpu"))) is None


def test_such_a_job_trains(tmp_path: Path) -> None:
    options = (
        *("parallel.shard=-1", "parallel.reshard=2", "parallel.sharding.accumulation=unsharded"),
        *("parallel.engine=deepspeed", "duration=1 steps"),
    )
    assert train(small_job(tmp_path, *options)).status == 0
