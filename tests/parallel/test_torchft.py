"""Replica groups on gloo: one is killed, the other goes on, and it comes back.

Runs of whole jobs need torchft: `make torchft`.
"""

import os
import subprocess
import sys
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import ConfigError
from setpoint.data.corpus import build_corpus
from setpoint.data.document import Document
from setpoint.data.loader import Feed
from setpoint.data.order import Sampler
from setpoint.data.rows import RowOrder, training_rows
from setpoint.data.tokenizer import ByteTokenizer
from setpoint.parallel.config import TorchFT
from setpoint.parallel.replica_groups import ReplicaGroups
from setpoint.parallel.world import World
from setpoint.resilience.signals import StopRequest
from setpoint.shapes.batch import Count
from setpoint.train.build.components import build_components
from setpoint.train.loop import Loop
from setpoint.train.position import Position
from setpoint.train.resume import PeerShard
from tests.support.tensors import read

from ..conftest import ROOT
from ..support.snapshots import refused
from ..train.small import events, rows, small_job


def weights(run: Path, steps: int) -> dict[str, torch.Tensor]:
    found = CheckpointStore(run / "checkpoints").load_newest()
    assert found is not None and found.step == steps
    return read(found.tensors["model"])


EXPERTS = (
    "model.moe.experts=4",
    "model.moe.router=sigmoid_top_k",
    "model.moe.sequence_balance_loss=0.01",
    "model.moe.load_sequences=1",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ("1", "kill"),
        ("2", "kill", "parallel.shard=2"),
        ("2", "kill", "parallel.shard=2", "parallel.expert=2", *EXPERTS),
        ("2", "no", "parallel.tensor=2"),
        ("2", "no", "parallel.replicate=2", *EXPERTS),
    ],
    ids=["one rank", "shards", "experts", "tensor", "replicas"],
)
def test_groups_train_what_one_rank_does(flags: tuple[str, ...], tmp_path: Path) -> None:
    """Of the second group a rank is killed in a step, which the first one takes without it."""
    pytest.importorskip("torchft")
    command = [sys.executable, "-m", "tests.parallel.replica_groups", str(tmp_path), *flags]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True,
        text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    first, second = sorted((tmp_path / "runs").glob("groups-*"))
    assert second.name == f"{first.name}-replica-1"
    (alone,) = (tmp_path / "runs").glob("alone-*")
    killed = flags[1] == "kill"
    if killed:
        assert events(first, "retaken")
        # It may have begun later than the other one; from then on it needs no state.
        assert all(each["before"] == 0 for each in events(first, "healed"))
        healed = events(second, "healed")[-1]
        assert 0 < healed["before"] < healed["step"]
    compare(first, second, alone, 24 if killed else 4, atol=1e-4)


def compare(first: Path, second: Path, alone: Path, steps: int, atol: float) -> None:
    """The loss of each step, in the rows of either group, and the weights at the end."""
    expected = {row["step"]: row["loss"] for row in rows(alone)}
    found: dict[int, float] = {}
    for group in (second, first):
        found |= {row["step"]: row["loss"] for row in rows(group)}
    assert found == pytest.approx(expected, rel=1e-5) and len(found) == steps
    here, there, oracle = (weights(group, steps) for group in (first, second, alone))
    for name, tensor in oracle.items():
        assert torch.equal(here[name], there[name]), name
        torch.testing.assert_close(here[name], tensor, rtol=0, atol=atol)


def test_a_group_divides_its_part_of_the_rows_among_its_ranks() -> None:
    corpus = build_corpus([Document("a", bytes(range(250)) * 3)], ByteTokenizer(), side="train")
    windows = training_rows(corpus, 4)

    def rows_of(rank: int, groups: int, group: int, counts: tuple[int, ...] = (4,)) -> list[int]:
        feed = Feed(
            windows, Sampler([RowOrder(windows, 5)]),
            lambda b: Count(b.tokens, b.tokens, 1.0),
            micro_size=1, accumulation=4, data_rank=rank, data_size=2,
        )  # fmt: skip
        found: list[int] = []
        for feed.accumulation in counts:
            feed.divide(group, groups)
            found += [batch.inputs[0, 0].item() for batch in feed.take().batches]
        return found

    whole = [rows_of(rank, 1, 0) for rank in range(2)]
    parts = [rows_of(rank, 2, group) for group in range(2) for rank in range(2)]
    assert [len(each) for each in (*whole, *parts)] == [4, 4, 2, 2, 2, 2]
    assert sorted(chain(*whole)) == sorted(chain(*parts))
    # A third group has no part of four micro-batches, and counts as far as the others do.
    assert [rows_of(rank, 3, 2) for rank in range(2)] == [[], []]
    # A batch that grows: one of six parts, two of six, and so on.
    grown = [rows_of(rank, 2, group, (1, 2, 6)) for group in range(2) for rank in range(2)]
    assert [len(each) for each in grown] == [5, 5, 4, 4]
    assert sorted(chain(*grown)) == sorted(
        chain(*(rows_of(rank, 1, 0, (4, 4, 1)) for rank in range(2)))
    )


def test_a_part_of_a_tensor_is_for_the_same_part_alone() -> None:
    part = PeerShard(torch.arange(6.0).view(2, 3), (4, 3), (2, 0))
    assert part.box((2, 0), (2, 3)).tolist() == [[0, 1, 2], [3, 4, 5]] and part.shape == (4, 3)
    with refused():
        part.box((0, 0), (2, 3))


@pytest.mark.parametrize(
    "flags",
    [
        ("batch.micro_size=4",),
        ("seed=null",),
        ("parallel.torchft.replica_id=2",),
        ("parallel.torchft.min_replica_size=3",),
        ("parallel.world_size=2", "parallel.pipeline=2", "model.layers=2", "batch.accumulation=2"),
        ("parallel.torchft.process_group=nccl", "parallel.device=cpu"),
        ("resilience.non_finite=rollback", "checkpoint.at_start=true"),
    ],
    ids=" ".join,
)
def test_what_replica_groups_cannot_do_is_refused(tmp_path: Path, flags: tuple[str, ...]) -> None:
    base = ("parallel.torchft={}", "batch.global_size=4")
    with refused(ConfigError):
        small_job(tmp_path, *base, *flags, without=("accumulation", "micro_size"))


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
    section = TorchFT(lighthouse="http://here:1")
    groups = ReplicaGroups(section, 60.0, "3fa94c21 (2, 4, 2)", World(torch.device("cpu")))
    counts, other = torch.tensor([3.0, 5.0], dtype=torch.float64), 0
    groups.sum_counts(counts)
    assert counts.tolist() == [6.0, 10.0]
    other = 1
    with refused():
        groups.sum_counts(counts)


def test_a_missing_lighthouse_or_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHFT_LIGHTHOUSE", raising=False)
    with refused():
        ReplicaGroups(TorchFT(), 60.0, "", World(torch.device("cpu")))
    monkeypatch.setitem(sys.modules, "torchft", None)
    with refused():
        section = TorchFT(lighthouse="http://localhost:1")
        ReplicaGroups(section, 60.0, "", World(torch.device("cpu")))


def test_a_group_that_takes_the_state_of_another_goes_on_at_its_step(tmp_path: Path) -> None:
    job = small_job(tmp_path, "duration=9 steps", "evaluation=null")
    components = build_components(job)
    loop = Loop(job, components, [], StopRequest(), Position())

    class Groups:
        """A quorum of one, in whose place another group had taken five steps."""

        rank, size, breaks = 0, 1, False

        def begin(self, step: int) -> None:
            loop.continue_from(Position(step=5, tokens=5))

        def sum(self, tensors: object) -> None: ...

        sum_counts = sum

        def commits(self) -> bool:
            return True

    components.replica_groups = Groups()  # type: ignore[assignment]
    loop.step()
    assert (loop.position.step, loop.position.tokens) == (6, 5 + 64)
