"""Run by test_reading.py in a process of its own: who reads the weights that ranks start from."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from setpoint.config import RunError, SetpointError
from setpoint.model import save_pretrained
from setpoint.model.pretrained import read_tensor
from setpoint.parallel.world import World
from setpoint.shapes.placed import whole_of
from setpoint.train.build.components import build_components
from setpoint.train.config import Job

from ..ranks import fork
from ..train.small import small_job

WORLD = 2
COMMON = ("model.dropout=0", "model.layers=2", "evaluation=null", "batch.micro_size=2")
RANKS = (f"parallel.world_size={WORLD}", "batch.accumulation=1")
EXPERTS = ("model.qk_norm=true", "model.moe={experts: 4, expert_dim: 24}")
FAMILIES = ((), ("model.tie_embeddings=true", "model.kv_heads=1"), EXPERTS)
BROADCASTS = "parallel.read_weights=rank_0_broadcasts"


def begun(job: Job, world: World | None = None) -> tuple[dict[str, torch.Tensor], int]:
    """The weights that a job starts with, whole, and how many bytes of files this rank has read."""
    read: list[int] = []
    real = read_tensor.TensorReader._read

    def counted(self: Any, *given: Any) -> torch.Tensor:
        tensor = real(self, *given)
        read.append(tensor.nbytes)
        return tensor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_tensor.TensorReader, "_read", counted)
        model = build_components(job, world=world).model
    weights = {name: whole_of(value) for name, value in model.state_dict().items()}
    return weights, sum(read)


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
        expected, whole = begun(small_job(folder, *starts), one)
        for shard, flags, shares in (
            (1, (), (1.0, 1.0)),
            (2, (), (0.5, 0.5)),
            (1, (BROADCASTS,), (1.0, 0.0)),
            (2, (BROADCASTS,), (1.0, 0.0)),
            *([(2, ("parallel.expert=2",), (0.5, 0.5))] if family is EXPERTS else []),
        ):
            job = small_job(folder, *starts, *RANKS, f"parallel.shard={shard}", *flags)
            found, read = begun(job)
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[name], expected[name]) for name in expected)
            share = shares[dist.get_rank()]
            assert read == pytest.approx(share * whole, rel=0.02), (shard, flags, read, whole)


def all_hear_of_what_cannot_be_read(folder: Path, files: Path) -> None:
    path = files / "weights-0" / "model.safetensors"
    job = small_job(folder, *COMMON, *RANKS, BROADCASTS, f"model.pretrained={path.parent}")

    def gone(self: Any, *given: Any) -> torch.Tensor:
        raise SetpointError(f"{path} cannot be read: Input/output error")

    rank = dist.get_rank()
    with pytest.MonkeyPatch.context() as patch:
        if rank == 0:
            patch.setattr(read_tensor.TensorReader, "_read", gone)
        error = SetpointError if rank == 0 else RunError
        with pytest.raises(error, match=r"model.safetensors cannot be read: Input/output error"):
            build_components(job)


def one_rank(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    files = Path(store).parent
    folder = files / f"rank-{rank}"
    each_reads_what_it_is_to(folder, files)
    all_hear_of_what_cannot_be_read(folder, files)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(fork(one_rank, WORLD))
