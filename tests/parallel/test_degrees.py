"""Degrees of the axes, and where each rank stands."""

from __future__ import annotations

from typing import Any

import pytest

from setpoint.config import ConfigError, resolve
from setpoint.parallel.config import AXES, Parallel
from setpoint.parallel.engines import DeepSpeed
from setpoint.parallel.world import ranks_by


def degrees(**given: Any) -> dict[str, int]:
    found = Parallel(**given).degrees
    return {axis: degree for axis, degree in found.items() if degree > 1}


def test_one_axis_takes_the_ranks_that_are_left() -> None:
    assert degrees(world_size=8) == {"replicate": 8}
    assert degrees(world_size=8, shard=2) == {"replicate": 4, "shard": 2}
    assert degrees(world_size=8, shard=-1, tensor=2) == {"shard": 4, "tensor": 2}
    assert degrees(world_size=8, replicate=2, ring=-1) == {"replicate": 2, "ring": 4}
    many = Parallel(world_size=32, pipeline=2, shard=2, ring=2, ulysses=2, tensor=2)
    assert (many.data_ranks, many.shards) == (2, 8)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "8 ranks: replicate 8 (DDP)"),
        ({"shard": 2}, "8 ranks: replicate 4, shard 2 (FSDP2)"),
        ({"pipeline": 2, "tensor": 4}, "8 ranks: pipeline 2, tensor 4"),
        ({"ring": 4, "tensor": 2}, "8 ranks: ring 4 (FSDP2), tensor 2"),
        ({"shard": 8, "expert": 4}, "8 ranks: shard 8 (FSDP2), expert 4"),
        ({"engine": DeepSpeed(stage=3)}, "8 ranks: replicate 8 (DeepSpeed, ZeRO stage 3)"),
        ({"world_size": 1}, "1 rank"),
    ],
)
def test_the_topology_in_words(given: dict[str, Any], said: str) -> None:
    assert Parallel(**{"world_size": 8, **given}).topology == said


@pytest.mark.parametrize(
    ("given", "field", "said"),
    [
        ({"tensor": 3}, "tensor", "2 (replicate) * 1 (shard) * 3 (tensor) = 6, not 8"),
        ({"shard": -1, "ring": -1}, "ring", "shard and ring are -1: only one axis"),
        ({"pipeline": 0}, "pipeline", "is 0"),
        ({"replicate": 3, "shard": 2}, "shard", "3 (replicate) * 2 (shard) = 6, not 8"),
        ({"pipeline": 16}, "pipeline", "16 (pipeline) * 1 (replicate) * 1 (shard) = 16, not 8"),
    ],
)
def test_degrees_that_do_not_multiply_are_refused(
    given: dict[str, Any], field: str, said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve(Parallel(world_size=8, **given))
    (problem,) = refused.value.problems
    assert problem.path == field
    assert said in problem.message
    for valid in problem.valid:
        names, _, sizes = valid.partition(" = ")
        if sizes:
            values = map(int, sizes.split(" * "))
            fits: dict[str, Any] = dict(zip(names.split(" * "), values, strict=True))
            resolve(Parallel(world_size=8, **fits))


def test_degrees_without_ranks_are_refused_with_the_command_that_starts_them() -> None:
    with pytest.raises(ConfigError, match="--nproc 6; commands that plan take --world-size 6"):
        resolve(Parallel(shard=2, tensor=3))


def test_ranks_of_the_last_axis_are_neighbours() -> None:
    sizes: dict[str, int] = dict(zip(AXES, (2, 1, 2, 1, 2, 2), strict=True))
    grid = ranks_by(sizes, *((axis,) for axis in AXES))
    assert grid.flatten().tolist() == list(range(16))
    # Ranks that hold the shards of one stage and one part of its matrices, a context among them.
    folded = ranks_by(sizes, ["pipeline"], ["replicate"], ["shard", "ring", "ulysses"], ["tensor"])
    assert folded[0, 0, :, 0].tolist() == [0, 2, 4, 6]
    outside = ranks_by(sizes, ["pipeline"], ["replicate", "ulysses"], ["shard", "ring"], ["tensor"])
    assert outside[0, :, :, 0].tolist() == [[0, 4], [2, 6]]
    # torch reads the order of a mesh's dimensions from its strides.
    few = dict.fromkeys(AXES, 1) | {"ring": 2, "ulysses": 2}
    grid = ranks_by(few, ["pipeline"], ["replicate", "ulysses"], ["shard", "ring"], ["tensor"])
    assert grid.flags.c_contiguous and grid.tolist() == [[[[0], [2]], [[1], [3]]]]
