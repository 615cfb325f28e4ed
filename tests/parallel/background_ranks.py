"""Functions of ranks that save in the background, which train/test_background.py calls."""

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from setpoint.checkpoint import staging
from setpoint.checkpoint.folder import list_checkpoints, unfinished
from setpoint.checkpoint.loading import verify_directory
from setpoint.checkpoint.staging import HostMemory
from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import SetpointError
from setpoint.files import atomic
from setpoint.parallel.hangs import HangWatch
from setpoint.parallel.world import World, world_of
from setpoint.train.run import train

from ..support.ranks import launched
from ..train.effects.checkpoint_fields import late_copies
from ..train.small import assert_same_run, small_job

FLAGS = ("duration=5 steps", "checkpoint.keep=null", "checkpoint.every=2 steps")
SHARDED = ("parallel.shard=2", "parallel.world_size=2", "batch.accumulation=1")
ASYNC = ("checkpoint.mode=async", "checkpoint.in_flight=2")


def this_rank(folder: Path) -> World:
    launched(dist.get_rank(), 2)
    return world_of(small_job(folder / "job", *SHARDED).parallel)


def a_run_saves_the_same(folder: Path) -> None:
    world, folder = this_rank(folder), folder.parent
    own = folder / f"files-{world.rank}"
    waited, gone_on = folder / "sync", folder / "async"
    train(small_job(own, *FLAGS, *SHARDED), directory=waited)
    with late_copies() as late:
        train(small_job(own, *FLAGS, *SHARDED, *ASYNC), directory=gone_on)
    assert any(late)
    if not world.is_main:
        return
    assert_same_run(gone_on, waited)
    steps = list_checkpoints(gone_on / "checkpoints")
    assert list(steps) == [2, 4, 5]
    for directory in steps.values():
        verify_directory(directory)
        for file in directory.glob("*-of-00002.safetensors"):
            there = waited / "checkpoints" / directory.name / file.name
            assert file.read_bytes() == there.read_bytes(), file


def steps_do_not_shorten_how_long_writers_wait(folder: Path) -> None:
    world = this_rank(folder)

    def timeout_of(group: Any) -> float:
        return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()

    with HangWatch(world.rank, 70.0, 50.0) as watch:
        apart = world.with_own_group("writers", 90.0)
        assert apart.process_group is not None and apart.size == 2 and apart.device.type == "cpu"
        watch.expect(watch.step)
        found = timeout_of(dist.group.WORLD), timeout_of(apart.process_group)
        assert found == (50.0, 90.0), found
        # The threads of both and their main threads talk at once, in any order.
        said: list[Any] = []

        def talk() -> None:
            for number in range(30):
                assert apart.all_of((number, world.rank)) == [(number, 0), (number, 1)]
                said.append(apart.on_main(lambda number=number: number))

        thread = threading.Thread(target=talk)
        thread.start()
        for number in range(30):
            tensor = torch.tensor(float(number))
            world.sum(tensor)
            assert tensor == 2 * number
        thread.join()
        assert said == list(range(30))


def a_failed_write_ends_the_run_on_all_ranks(folder: Path) -> None:
    world, folder = this_rank(folder), folder.parent

    def full(path: Path, chunks: Iterable[bytes | memoryview]) -> atomic.Written:
        if world.rank == 1 and "step-00000004" in str(path):
            atomic.write_file(path, list(chunks)[:1])
            raise OSError(28, "No space left on device")
        return atomic.write_file(path, chunks)

    staging.write_file = full
    error = ""
    try:
        job = small_job(folder / f"files-{world.rank}", *FLAGS, *SHARDED, *ASYNC)
        train(job, directory=folder / "run")
    except SetpointError as refused:
        error = str(refused)
    staging.write_file = atomic.write_file
    assert error.startswith("rank 1: the checkpoint of step 4 could not be saved"), error
    # Not a rank that waits for another that has left.
    assert "No space left on device; step 2 is still there" in error, error
    dist.barrier()
    root = folder / "run" / "checkpoints"
    assert 4 not in list_checkpoints(root) and not unfinished(root), list(root.iterdir())
    verify_directory(list_checkpoints(root)[2])


def too_little_memory_is_said_in_words_on_all_ranks(folder: Path) -> None:
    """In the save, or in the thread that copies what is not copied yet."""
    world, folder = this_rank(folder), folder.parent
    weights = torch.ones(4)

    def refused(*_: Any) -> Any:
        raise MemoryError

    for name in ("copy", "finish"):
        store = CheckpointStore(folder / name, world=world, in_flight=1, timeout=60.0)
        kept = getattr(HostMemory, name)
        if world.rank == 1:
            setattr(HostMemory, name, refused)
        # Of both ranks: the second writes "b", as the first has as much to write.
        store.save(1, {"model": {"a": weights, "b": weights + 1}}, {}, unchanged=[weights])
        error = ""
        try:
            store.wait()
        except SetpointError as said:
            error = str(said)
        setattr(HostMemory, name, kept)
        assert not store.close()
        place = folder / name
        assert error == (
            f"rank 1: the checkpoint of step 1 could not be saved in {place}: there is not enough "
            f"host memory for its copy, which needs 0.0 MB on this rank; there was none before it. "
            f"What helps: checkpoint.mode = sync, which copies one tensor at a time"
        ), error
        dist.barrier()
        assert not list(place.iterdir()), list(place.iterdir())
