"""Run by test_checkpoints_of_ranks.py: which ranks read the weights that all start from."""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

from setpoint.checkpoint import loading
from setpoint.config import RunError, SetpointError
from setpoint.files import tensor_file
from setpoint.model import load_pretrained, save_pretrained
from setpoint.model.pretrained import read_tensor
from setpoint.parallel.world import World
from setpoint.shapes.placed import local_part, whole_of
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.run import train

from ..support.ranks import fork_group
from ..train.small import small_job

WORLD = 2
COMMON = ("model.dropout=0", "model.layers=2", "evaluation=null", "batch.micro_size=1")
RANKS = (f"parallel.world_size={WORLD}", "batch.global_size=4")
EXPERTS = ("model.qk_norm=true", "model.moe={experts: 4, expert_dim: 24}")
FAMILIES = (("model.tie_embeddings=true", "model.kv_heads=1"), EXPERTS)
BROADCASTS = "parallel.load_weights=broadcast"


class Begun(NamedTuple):
    """The weights that a job starts with, whole; the bytes that this rank has read and holds."""

    weights: dict[str, torch.Tensor]
    read: int
    held: int


def begun(job: Job, world: World | None = None) -> Begun:
    read: list[int] = []

    real = read_tensor._read_stored

    def count(*given: Any) -> torch.Tensor:
        tensor = real(*given)
        read.append(tensor.nbytes)
        return tensor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_file, "ROW", 0)  # rows of these matrices are short
        patch.setattr(read_tensor, "_read_stored", count)
        model = build_components(job, world=world).model
    weights = {name: whole_of(value) for name, value in model.state_dict().items()}
    held = sum(local_part(each).nbytes for each in model.parameters())
    return Begun(weights, sum(read), held)


def each_reads_what_it_is_to(folder: Path, files: Path) -> None:
    one = World(torch.device("cpu"))
    for number, family in enumerate(FAMILIES):
        small = (*COMMON, *family)
        source = build_components(small_job(folder, *small, "seed=5"), world=one).model
        path = files / f"weights-{number}"
        if dist.get_rank() == 0:
            save_pretrained(source, path)
        dist.barrier()
        starts = (*small, f"model.pretrained={path}")
        expected, whole, _ = begun(small_job(folder, *starts), one)
        divisions = ["shard=1", "shard=2", "tensor=2"]
        divisions += ["shard=2,expert=2"] if family is EXPERTS else []
        divisions += [] if "model.tie_embeddings=true" in family else ["pipeline=2"]
        for division in divisions:
            degrees = [f"parallel.{each}" for each in division.split(",")]
            job = small_job(folder, *starts, *RANKS, *degrees, without=("accumulation",))
            found, read, held = begun(job)
            if division != "pipeline=2":
                assert found.keys() == expected.keys()
            assert all(torch.equal(each, expected[name]) for name, each in found.items())
            # Of what two ranks hold each, both read all.
            assert read == pytest.approx(held, rel=0.02), (division, read, held, whole)
            assert division == "shard=1" or held < 0.8 * whole, (division, held, whole)
        for shard in (1, 2):
            flags = (*RANKS, f"parallel.shard={shard}", BROADCASTS)
            found, read, _ = begun(small_job(folder, *starts, *flags, without=("accumulation",)))
            assert all(torch.equal(found[name], expected[name]) for name in expected)
            share = (1.0, 0.0)[dist.get_rank()]
            assert read == pytest.approx(share * whole, rel=0.02), (shard, read, whole)


def a_divided_checkpoint_is_sent(folder: Path, files: Path) -> None:
    """The first rank reads the parts of all ranks, and the others none."""
    flags = (*COMMON, *RANKS, "parallel.shard=2")
    run = files / "run"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("WORLD_SIZE", WORLD), ("RANK", dist.get_rank())):
            patch.setenv(name, str(value))
            patch.setenv(f"LOCAL_{name}", str(value))
        train(
            small_job(folder, *flags, "duration=1 step", without=("accumulation",)), directory=run
        )
    assert [*run.glob("checkpoints/*/model.index.json")]
    expected = load_pretrained(run).state_dict()
    sizes: list[int] = []
    real = loading.read_box

    def count(descriptor: int, info: Any, box: Any, into: torch.Tensor) -> None:
        sizes.append(into.nbytes)
        real(descriptor, info, box, into)

    for option in (BROADCASTS, "parallel.load_weights=every_rank"):
        sizes.clear()
        job = small_job(
            folder, *flags, f"model.pretrained={run}", option, without=("accumulation",)
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loading, "read_box", count)
            model = build_components(job).model
        weights = {name: whole_of(value) for name, value in model.state_dict().items()}
        assert all(torch.equal(tensor, expected[name]) for name, tensor in weights.items())
        assert bool(sizes) == (option != BROADCASTS or dist.get_rank() == 0)


def all_hear_of_what_cannot_be_read(folder: Path, files: Path) -> None:
    path = files / "weights-0" / "model.safetensors"
    flags = (*COMMON, *FAMILIES[0], *RANKS, BROADCASTS, f"model.pretrained={path.parent}")
    job = small_job(folder, *flags, without=("accumulation",))

    def gone(*given: Any) -> torch.Tensor:
        raise SetpointError(f"{path} cannot be read: Input/output error")

    rank = dist.get_rank()
    with pytest.MonkeyPatch.context() as patch:
        if rank == 0:
            patch.setattr(read_tensor, "_read_stored", gone)
        error = SetpointError if rank == 0 else RunError
        with pytest.raises(error, match=r"model.safetensors cannot be read: Input/output error"):
            build_components(job)


def one_rank(rank: int, store: str) -> None:
    files = Path(store).parent
    folder = files / f"rank-{rank}"
    each_reads_what_it_is_to(folder, files)
    a_divided_checkpoint_is_sent(folder, files)
    all_hear_of_what_cannot_be_read(folder, files)


if __name__ == "__main__":
    sys.exit(fork_group(one_rank, WORLD))
