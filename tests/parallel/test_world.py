"""One process is the whole world; how two of them add up is tested where they balance experts."""

import errno
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from setpoint.cli.main import is_said_elsewhere
from setpoint.config import ConfigError, RunError, SetpointError, log_of, resolve, verify
from setpoint.config.values.user_code import LOG_OF
from setpoint.parallel.config import AXES, Parallel
from setpoint.parallel.engines import DeepSpeed
from setpoint.parallel.hangs import HangWatch
from setpoint.parallel.launcher import LocalRanks, RankFailed
from setpoint.parallel.process_group import LostRanks, backend_of, joined, store_of_attempt
from setpoint.parallel.rank import (
    REPORT,
    facts_of,
    first_failure,
    has_left_error,
    leave,
    require_launch,
)
from setpoint.parallel.world import World, ranks_by, world_of
from setpoint.train.open import compare

from ..checkpoint.disk import Operation, watched
from ..conftest import ROOT
from ..support.snapshots import refused
from ..train.small import small_job


def test_one_process() -> None:
    world = world_of(resolve(Parallel(device="cpu")))
    assert world == World(torch.device("cpu")) and world.is_main
    tensor = torch.tensor([1.0, 2.0])
    world.sum(tensor)
    assert tensor.tolist() == [1.0, 2.0]
    assert (world.any(True), world.any(False)) == (True, False)


@pytest.fixture
def one_of_two(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is rank 0, whose store another program keeps from listening."""
    monkeypatch.setattr("setpoint.parallel.process_group.enter", lambda: None)
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(taken.getsockname()[1])}
        for name, value in {**place, "RANK": "0", "WORLD_SIZE": "2"}.items():
            monkeypatch.setenv(name, value)
        yield


@pytest.mark.parametrize(
    "variable",
    [
        "RANK=abc",
        "RANK=2",
        "RANK=\u0661",  # a digit, and no decimal of ASCII
        "WORLD_SIZE=",
        "WORLD_SIZE=9999999999",
        "WORLD_SIZE",
        "LOCAL_RANK=2",
        "LOCAL_WORLD_SIZE=3",
        "MASTER_ADDR",
        "MASTER_PORT=http",
    ],
)
@pytest.mark.usefixtures("one_of_two")
def test_variables_of_a_launcher_that_contradict_each_other(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    require_launch()
    name, given, value = variable.partition("=")
    if given:
        monkeypatch.setenv(name, value)
    else:
        monkeypatch.delenv(name)
    with refused() as caught:
        require_launch()
    assert caught.value.status == 2
    if "MASTER" not in variable:
        with pytest.raises(SetpointError) as again, joined(resolve(Parallel(device="cpu"))):
            raise AssertionError("it waits for no rank")
        assert str(again.value) == str(caught.value)


@pytest.mark.usefixtures("one_of_two")
def test_a_port_in_use_is_named() -> None:
    port = os.environ["MASTER_PORT"]
    with pytest.raises(RunError) as caught, joined(resolve(Parallel(device="cpu"))):
        raise AssertionError("nobody listens here")
    said = str(caught.value)
    assert (
        f"rank 0 of 2 did not connect to the others (MASTER_ADDR=localhost MASTER_PORT={port})"
        in said
    )
    assert "is listening on this port: choose another MASTER_PORT" in said


def ranks_in(folder: Path, count: int) -> LocalRanks:
    """Ranks that an agent has started."""
    ranks = LocalRanks(folder, count, None, 1, lambda text: None)
    ranks.reify({local: {"RANK": str(local)} for local in range(count)})
    return ranks


def be(monkeypatch: pytest.MonkeyPatch, ranks: LocalRanks, rank: int) -> None:
    """Let this process be a rank."""
    assert ranks.folder is not None
    report = ranks.folder / str(rank) / "error.json"
    for name, value in {"RANK": rank, "LOCAL_RANK": rank, REPORT: report}.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.usefixtures("one_of_two")
def test_a_rank_that_does_not_connect_may_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = ranks_in(tmp_path, 2)
    with socket.socket() as free:
        free.bind(("", 0))
        port = str(free.getsockname()[1])
    be(monkeypatch, ranks, 0)
    monkeypatch.setenv("MASTER_PORT", port)
    with pytest.raises(LostRanks) as caught, joined(resolve(Parallel(device="cpu", timeout=1))):
        raise AssertionError("nobody comes")
    assert is_said_elsewhere(caught.value)
    killed = ProcessFailure(local_rank=1, pid=1, exitcode=-signal.SIGKILL, error_file="")
    said = "no answer from rank 1: rank 0 of 2 did not connect to the others (MASTER_ADDR=localhost"
    for failures in ({1: killed}, {}):  # as at the end, and before a restart
        with pytest.raises(RankFailed) as failed:
            ranks.status(failures)
        assert said in str(failed.value) and failed.value.may_restart
    be(monkeypatch, ranks, 1)
    leave(75)  # asked by the agent alone
    with pytest.raises(RankFailed) as failed:
        ranks.status({1: killed})
    assert said in str(failed.value) and failed.value.may_restart


def test_a_store_that_ends_while_ranks_meet_is_not_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who waits to meet there says it; the thread that answers others has ended by then."""
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port)}
    for name, value in {**place, "TORCHELASTIC_USE_AGENT_STORE": "True"}.items():
        monkeypatch.setenv(name, value)
    others = threading.active_count()
    with store_of_attempt(0, 2, timedelta(seconds=5)):
        del store
        until = time.monotonic() + 5
        while threading.active_count() > others and time.monotonic() < until:
            time.sleep(0.01)
        assert threading.active_count() == others
    assert not raised


@pytest.mark.usefixtures("one_of_two")
def test_another_number_of_ranks_than_the_launcher_has_started_is_refused(tmp_path: Path) -> None:
    job = small_job(tmp_path, "parallel.world_size=4", "batch.micro_size=1")
    with refused():
        compare(job, None, ())


def test_a_backend_that_the_device_lacks_is_refused() -> None:
    cpu = torch.device("cpu")
    assert backend_of(Parallel(), cpu) == "gloo" == backend_of(Parallel(backend="gloo"), cpu)
    with refused(ConfigError):
        resolve(Parallel(backend="nccl", device="cpu"))
    (problem,) = verify(resolve(Parallel(backend="nccl")), {"torch"}).problems
    assert problem.message == "nccl runs only on GPUs, but PyTorch sees no GPU on this machine"


def test_a_disk_that_fails_costs_the_file_of_stacks_alone(tmp_path: Path) -> None:
    """The run's own error is reported, not that an empty file stays."""

    def fail(operation: Operation) -> None:
        if operation.kind == "unlink":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with watched(tmp_path, before=fail), HangWatch(3, 60.0, 60.0) as watch:
        watch.keep_in(tmp_path)
    assert (tmp_path / "rank-3.stacks").read_bytes() == b""
    with refused(RunError), HangWatch(3, 60.0, 60.0) as watch:
        watch.keep_in(tmp_path / "gone")


def test_a_rank_that_fails_leaves_its_traceback_to_launcher_and_main_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = ranks_in(tmp_path, 2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    be(monkeypatch, ranks, 1)
    assert not has_left_error()
    error = ValueError("the fault")
    setattr(error, LOG_OF, "runs/a/logs/rank-1.log")
    try:
        raise error
    except ValueError:
        leave(1, "rank 1: ValueError: the fault", more=facts_of(error))
    assert has_left_error() and first_failure() is None
    be(monkeypatch, ranks, 0)
    leave(1, "rank 0 lost its connection to the others", is_lost=True)
    first = first_failure()
    assert first is not None and (first.rank, first.error) == (1, "rank 1: ValueError: the fault")
    assert first.frames.endswith("ValueError: the fault") and __file__ in first.frames
    with refused(RankFailed) as failed:
        ranks.status({})
    assert log_of(failed.value) == "runs/a/logs/rank-1.log"
    assert failed.value.rank_traceback == first.traceback


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
    "given", [{"tensor": 3}, {"shard": -1, "ring": -1}, {"pipeline": 0}, {"pipeline": 16}], ids=str
)
def test_degrees_that_do_not_multiply_are_refused(given: dict[str, Any]) -> None:
    with refused(ConfigError) as caught:
        resolve(Parallel(world_size=8, **given))
    (problem,) = caught.value.problems
    for valid in problem.valid:
        names, _, sizes = valid.partition(" = ")
        if sizes:
            values = map(int, sizes.split(" * "))
            fits: dict[str, Any] = dict(zip(names.split(" * "), values, strict=True))
            resolve(Parallel(world_size=8, **fits))


def test_degrees_without_ranks_are_refused_with_the_command_that_starts_them() -> None:
    with refused(ConfigError):
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


# What is wrong in PyTorch without an error, and what to use instead.
WRONG = {
    # The gradient of its all_gather is wrong on gloo where what comes back is not contiguous.
    r"distributed\.nn\.functional|distributed\.nn import": "_functional_collectives",
    # Its thread's collectives meet those of training on the default group.
    r"\basync_save\(": "a process group of its own",
    # It refuses gradient accumulation, and counts optimizer state wrongly.
    r"\bMemTracker\b|FSDPMemTracker": "setpoint's own meter",
    # It warns on each rank where FSDP2 has divided what the axis tensor had.
    r"\.full_tensor\(\)": "shapes.placed.whole_of",
    # Dividing a model within it fails, or takes forty times as long.
    r"\bFakeTensorMode\b": "the meta device, on which models are divided",
}
ALLOWED = "dry_run.py"
"""The file that enters `FakeTensorMode` after models are divided."""


@pytest.mark.parametrize("pattern", WRONG)
def test_what_is_wrong_in_pytorch_is_not_used(pattern: str) -> None:
    found = [
        str(path)
        for path in (ROOT / "src").rglob("*.py")
        if re.search(pattern, path.read_text(encoding="utf-8")) and path.name != ALLOWED
    ]
    assert found == [], f"use {WRONG[pattern]}"
