"""Replica groups on gloo: one is killed, the other goes on, and it comes back (`make torchft`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import ConfigError, SetpointError
from setpoint.parallel.config import TorchFT
from setpoint.parallel.replica_groups import ReplicaGroups
from tests.tensors import read

from ..conftest import ROOT
from ..train.small import events, rows, small_job


def weights(run: Path) -> dict[str, torch.Tensor]:
    found = CheckpointStore(run / "checkpoints").load("auto")
    assert found is not None and found.step == 60
    return read(found.tensors["model"])


@pytest.mark.slow
def test_a_group_that_dies_is_not_waited_for_and_gets_the_state_when_it_is_back(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torchft", reason="`make torchft` has it")
    done = subprocess.run(
        [sys.executable, "-m", "tests.parallel.replica_groups", str(tmp_path)],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    first, second = sorted((tmp_path / "runs").glob("groups-*"))
    assert second.name == f"{first.name}-replica-1"
    (alone,) = (tmp_path / "runs").glob("alone-*")
    # The group that was left took each step, also that in which the other one died.
    assert events(first, "retaken") and not events(first, "healed")
    healed = events(second, "healed")[-1]
    assert healed["before"] < healed["step"]
    ours, expected = ([row["loss"] for row in rows(run)] for run in (first, alone))
    assert len(ours) == 60 and ours == pytest.approx(expected, rel=1e-5)
    here, there, oracle = (weights(run) for run in (first, second, alone))
    for name, tensor in oracle.items():
        assert torch.equal(here[name], there[name]), name
        torch.testing.assert_close(here[name], tensor, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ("batch.micro_size=4",),
            "1 micro-batches of a step cannot be divided by 2",
        ),
        (("seed=null",), "each replica group would draw another one"),
        (("parallel.torchft.replica_id=2",), "2 is no number of 2 groups"),
        (("parallel.torchft.min_replica_size=3",), "3 groups are more than there are, 2"),
        (("parallel.world_size=2",), "a replica group has one rank so far, and there are 2"),
        (("model.moe.experts=4",), "replica groups do not share how tokens choose experts"),
        (
            ("parallel.torchft.process_group=nccl", "parallel.device=cpu"),
            "nccl runs on GPUs, and the device is cpu",
        ),
        (
            ("resilience.non_finite=rollback", "checkpoint.at_start=true"),
            "rollback goes to a checkpoint that the other replica groups may not have",
        ),
    ],
)
def test_what_replica_groups_cannot_do_is_refused(
    tmp_path: Path, flags: tuple[str, ...], said: str
) -> None:
    base = ("parallel.torchft={}", "batch.global_size=4")
    without = ("accumulation", "micro_size")
    with pytest.raises(ConfigError) as caught:
        small_job(tmp_path, *base, *flags, without=without)
    assert said in str(caught.value)


def test_groups_that_train_something_else_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Work:
        def wait(self) -> None: ...

    class Manager:
        """One of two groups, of which the other one has counted the same, and differs by 1."""

        def __init__(self, **given: object) -> None: ...

        def errored(self) -> None: ...

        def num_participants(self) -> int:
            return 2

        def allreduce(self, tensor: torch.Tensor, reduce_op: object) -> Work:
            tensor.mul_(2)
            tensor[-1] += other
            return Work()

    group = lambda within: within  # noqa: E731
    fake = SimpleNamespace(Manager=Manager, ProcessGroupGloo=group, ProcessGroupNCCL=group)
    monkeypatch.setitem(sys.modules, "torchft", fake)
    monkeypatch.setattr("socket.gethostname", lambda: "localhost")
    groups = ReplicaGroups(TorchFT(lighthouse="http://here:1"), 60.0, "3fa94c21 (2, 4, 2)")
    counts, other = torch.tensor([3.0, 5.0], dtype=torch.float64), 0
    groups.sum_counts(counts)
    assert counts.tolist() == [6.0, 10.0]
    other = 1
    with pytest.raises(SetpointError, match="the 2 replica groups at http://here:1 differ in"):
        groups.sum_counts(counts)


def test_a_missing_lighthouse_or_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHFT_LIGHTHOUSE", raising=False)
    with pytest.raises(SetpointError, match="TORCHFT_LIGHTHOUSE is not set"):
        ReplicaGroups(TorchFT(), 60.0, "")
    monkeypatch.setitem(sys.modules, "torchft", None)
    with pytest.raises(SetpointError, match="parallel.torchft needs the package 'torchft'"):
        ReplicaGroups(TorchFT(lighthouse="http://localhost:1"), 60.0, "")
