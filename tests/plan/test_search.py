"""The search for the fastest topologies: nothing that fits and is faster is passed over."""

from pathlib import Path

import pytest

from setpoint.plan.gpus import gpu_named
from setpoint.plan.step_time import Kernels, step_time
from setpoint.plan.topology import Topology
from setpoint.plan.topology_search import SearchSpace, least_memory, meshes, most_memory, search
from setpoint.plan.topology_search import _leaves as leaves_of
from setpoint.plan.workload import Workload

from ..support.snapshots import refused
from ..train.small import small_job

FLAGS = ("model.dim=256", "model.layers=4", "model.heads=4", "batch.global_size=16")


def space_of(folder: Path, limit: int = 2**40, *flags: str, **fixed: object) -> SearchSpace:
    job = small_job(folder, *FLAGS, *flags, without=("micro_size", "accumulation"))
    gpu, network = gpu_named("h100")
    workload = Workload.of(job, 257)
    return SearchSpace(workload, 8, Topology(), fixed, gpu, network, Kernels(), limit)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_it_finds_what_going_through_all_finds(tmp_path: Path, share: float) -> None:
    space = space_of(tmp_path, pipeline=1, ulysses=1)
    every = [leaf for mesh in meshes(space) for leaf in leaves_of(space, mesh)]
    held = sorted(most_memory(space.workload, each).total for each in every)
    space = space._replace(limit=held[int((len(held) - 1) * share)])
    times = sorted(
        step_time(space.workload, each, space.gpu, space.network).seconds
        for each in every
        if most_memory(space.workload, each).total <= space.limit
    )
    found = search(space, 3)
    # Some more than three are found, as far as there are any.
    assert [each.time.seconds for each in found.best] == times[: len(found.best)]
    assert len(found.best) == min(8, len(times))
    assert all(each.memory.total <= space.limit for each in found.best)


def test_meshes_multiply_to_the_ranks_and_divide_the_model(tmp_path: Path) -> None:
    space = space_of(tmp_path)
    found = list(meshes(space))
    assert len(found) == len(set(found)) > 20
    for mesh in found:
        assert mesh.world_size == 8
        assert 4 % mesh.tensor == 0 and mesh.pipeline <= 4 and 16 % mesh.data_ranks == 0
    assert {mesh.tensor for mesh in meshes(space_of(tmp_path, tensor=2))} == {2}


def test_where_nothing_fits_the_least_is_named(tmp_path: Path) -> None:
    space = space_of(tmp_path, limit=2**20, pipeline=1, ulysses=1)
    assert not search(space, 1).best
    least = least_memory(space)
    assert least.memory.total > space.limit
    assert least.topology.world_size == 8
    with refused():
        search(space_of(tmp_path, shard=3), 1)


def test_the_state_of_an_imported_optimizer_is_not_taken_for_nothing(tmp_path: Path) -> None:
    space = space_of(tmp_path, 2**40, "optimizer={type=import, target=torch.optim.Adam}")
    for find in (lambda: search(space, 1), lambda: least_memory(space)):
        with refused():
            find()
