"""Run by test_float8.py in a process of its own: float8 on two ranks is float8 on one.

Its arguments are names of cases; all without any. Where ranks multiply what one rank multiplies,
losses, norms and weights are those of one rank but for the order of fp32 sums. Where they divide
matrices or sequences, parts have scales of their own, and stages send bf16: this moves losses and
norms by less than float8 does.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_collectives

from setpoint.parallel.world import World
from setpoint.train.config import Job

from ..parallel.equal_ranks import Trained, assert_equal, trained
from ..support.ranks import fork_group
from ..train.small import small_job

COMMON = (
    "duration=2 steps", "model.layers=2", "model.dim=64", "model.heads=4", "model.kv_heads=2",
    "model.ffn_dim=64", "model.dropout=0", "evaluation=null", "batch.micro_size=1",
    "batch.accumulation=2", "batch.sequence_length=32", "precision.compute=bf16",
    "precision.float8.emulate=true", "checkpoint.save=false", "optimizer=sgd",
)  # fmt: skip
RECIPE = "precision.float8.recipe="
IN_BF16 = "precision.float8.gather=false"
SP = "parallel.sequence_parallel=true"
STAGES = ("parallel.pipeline=2", "batch.accumulation=4")
LORA = "adapter={type: lora, rank: 2, b_std: 0.1, targets: [layers]}"
DORA = LORA.replace("lora", "dora")
EXPERTS = (
    "model.moe={experts: 4, balance_loss: 0}", "precision.float8.experts=true", "parallel.shard=2",
    "parallel.expert=2",
)  # fmt: skip
# What divides the work, what else is set.
EQUAL: dict[str, tuple[str, ...]] = {
    "sharded": ("parallel.shard=2",),
    "sharded, gathered in bf16": ("parallel.shard=2", IN_BF16),
    "sharded, rowwise": ("parallel.shard=2", f"{RECIPE}rowwise"),
    "sharded, mxfp8": ("parallel.shard=2", f"{RECIPE}mxfp8"),
    "sharded, kept": ("parallel.shard=2", "parallel.reshard=false"),
    "sharded, compiled": ("parallel.shard=2", "compile={backend: aot_eager}"),
    "sharded, recomputed": ("parallel.shard=2", "memory.activation_checkpointing=full"),
    "sharded, lora": ("parallel.shard=2", LORA),
    "sharded, dora": ("parallel.shard=2", DORA),
    "replicated": ("parallel.shard=1",),
    "experts, rowwise": (*EXPERTS, f"{RECIPE}rowwise"),
    "experts, mxfp8": (*EXPERTS, f"{RECIPE}mxfp8"),
    "experts, compiled": (*EXPERTS[:-1], f"{RECIPE}mxfp8", "compile={backend: aot_eager}"),
    "experts, recomputed": (
        *EXPERTS,
        f"{RECIPE}rowwise",
        "memory.activation_checkpointing=operators",
    ),
    "replicated shards": ("parallel.replicate=2", "parallel.shard=2"),
}
NEAR: dict[str, tuple[str, ...]] = {
    "tensor": ("parallel.tensor=2",),
    "tensor, rowwise": ("parallel.tensor=2", f"{RECIPE}rowwise"),
    "sequence parallel, with_gw_hp": ("parallel.tensor=2", SP, f"{RECIPE}rowwise_with_gw_hp"),
    "tensor, mxfp8": ("parallel.tensor=2", f"{RECIPE}mxfp8_with_gw_hp"),
    "tensor, lora": ("parallel.tensor=2", LORA),
    "experts, lora": (*EXPERTS, f"{RECIPE}rowwise", LORA),
    "ring": ("parallel.ring=2",),
    "pipeline": STAGES,
    "pipeline, rowwise": (*STAGES, f"{RECIPE}rowwise"),
    "sharded stages": (*STAGES, "parallel.shard=2"),
    "tensor and shards": ("parallel.tensor=2", "parallel.shard=2"),
}
# Of losses and norms: of parts of matrices, and of another order of sums.
PARTS, SUMS = 3e-2, 1e-5


@contextmanager
def gathered_bytes(sizes: list[int]) -> Iterator[None]:
    """Count the bytes that this rank gives to FSDP2's all-gathers."""
    gather = _fsdp_collectives.DefaultAllGather.__call__

    def count(self: Any, output_tensor: Any, input_tensor: Any, *rest: Any, **named: Any) -> Any:
        sizes.append(input_tensor.nbytes)
        return gather(self, output_tensor, input_tensor, *rest, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_fsdp_collectives.DefaultAllGather, "__call__", count)
        yield


def alone(job: Job, flags: tuple[str, ...], *more: str) -> Trained:
    """The training of the first rank alone, with the micro-batches of all ranks."""
    flags = tuple(flag for flag in flags if not flag.startswith("parallel.") and flag != IN_BF16)
    count = f"batch.accumulation={job.batch.accumulation * job.parallel.data_ranks}"
    told: list[Any] = [None]
    if dist.get_rank() == 0:
        one = small_job(Path(tempfile.mkdtemp()), *COMMON, *flags, count, *more)
        told = [trained(one, World(torch.device("cpu")))]
    dist.broadcast_object_list(told)
    return told[0]


def compare(name: str, world_size: int) -> int:
    """Train one case on all ranks and on one.

    Returns:
        the bytes that FSDP2 gathered.
    """
    flags = {**EQUAL, **NEAR}[name]
    folder, sizes = Path(tempfile.mkdtemp()), list[int]()
    job = small_job(folder, *COMMON, *flags, f"parallel.world_size={world_size}")
    with gathered_bytes(sizes):
        found = trained(job)
    expected = alone(job, flags)
    if name in EQUAL:
        assert_equal(found, expected, SUMS, name)
    else:
        plain = alone(job, flags, "precision.float8=null")
        first, one, bf16 = (each[0][0] for each in (found, expected, plain))
        assert abs(first[0] - one[0]) < PARTS * one[0], (name, first, one)
        assert abs(first[1] - one[1]) < PARTS * one[1], (name, first, one)
        # The gradients are float8's, not bf16's.
        assert abs(first[1] - one[1]) < abs(first[1] - bf16[1]), (name, first, one, bf16)
    return sum(sizes)


def float8_ranks(rank: int, store: str) -> None:
    world_size = WORLD
    axes = [f"parallel.{axis}=2" for axis in ("replicate", "shard", "tensor", "ring", "pipeline")]
    names = sys.argv[2:] or [
        name for name, flags in {**EQUAL, **NEAR}.items()
        if 2 ** len(set(axes).intersection(flags))
        in (world_size, 1 if world_size == 2 else 0)
    ]  # fmt: skip
    sent = {name: compare(name, world_size) for name in names}
    if {"sharded", "sharded, gathered in bf16"} <= sent.keys():
        # Norms, embedding and output travel as they are.
        assert sent["sharded"] < sent["sharded, gathered in bf16"], sent
    if rank == 0:
        print(*(f"{name}: {size} bytes gathered" for name, size in sent.items()), sep="\n")


WORLD = int(sys.argv[1]) if __name__ == "__main__" and len(sys.argv) > 1 else 2

if __name__ == "__main__":
    sys.exit(fork_group(float8_ranks, WORLD))
