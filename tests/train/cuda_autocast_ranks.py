"""Run by test_cuda_autocast.py in a process of its own: shards and divided experts in bf16.

Under autocast as CUDA has it; rows of experts travel in bf16 both ways and back in gradients.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from setpoint.model.moe import dispatch

from ..support.cuda_autocast import cuda_autocast
from ..support.ranks import fork
from .small import small_job
from .test_cuda_autocast import trained

WORLD = 2
MOE = ("model.moe.experts=4", "model.moe.load_sequences=1", "model.qk_norm=true")
BASE = (
    "duration=3 steps", "precision.compute=bf16", "evaluation=null", "batch.global_size=4",
    "model.dropout=0",
)  # fmt: skip
CASES: dict[str, tuple[str, ...]] = {
    "shards": ("parallel.shard=2", "memory.activation_checkpointing=full"),
    "divided experts": ("parallel.shard=2", "parallel.expert=2", *MOE),
    "experts beside tensor": ("parallel.tensor=2", "parallel.expert=2", *MOE),
}


def losses_of(folder: Path, *flags: str) -> list[float]:
    """The losses of three steps."""
    return trained(small_job(folder, *BASE, *flags, without=("micro_size", "accumulation")))[0]


def check(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    sent: list[torch.dtype] = []
    exchanged: Any = dispatch._exchange

    def watched(tensors: Sequence[Tensor], *rest: Any) -> Any:
        # Weights of choices travel beside the rows, in the dtype of the router.
        sent.extend(each.dtype for each in tensors if each.shape[1] > 2)
        return exchanged(tensors, *rest)

    dispatch._exchange = watched
    with tempfile.TemporaryDirectory() as name, cuda_autocast():
        folder = Path(name)
        alone = {False: losses_of(folder), True: losses_of(folder, *MOE)}
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
        for case, flags in CASES.items():
            has_experts = MOE[0] in flags
            sent.clear()
            losses = losses_of(folder, f"parallel.world_size={WORLD}", *flags)
            assert losses == pytest.approx(alone[has_experts], abs=2e-2), case
            if has_experts:
                assert sent and set(sent) == {torch.bfloat16}, (case, set(sent))
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(fork(check, WORLD))
