"""Run by test_compile_model.py in a process of its own: compiled layers of two ranks of FSDP2."""

import sys

import torch
import torch._inductor.compile_fx  # which each rank would import
from torch import Tensor, nn
from torch._dynamo import utils
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from setpoint.compile.compile_model import compile_model
from setpoint.compile.config import Compile
from setpoint.config import resolve
from setpoint.memory.checkpointing import recompute

from ..support.ranks import fork_group
from .models import stack, train_on

WORLD = 2


def gradients(model: nn.Module) -> list[Tensor]:
    found = [p.grad for p in model.parameters() if p.grad is not None]
    return [each.full_tensor() if isinstance(each, DTensor) else each for each in found]


def shard(model: nn.Module) -> None:
    for layer in model.children():
        fully_shard(layer)
    fully_shard(model)


def one_rank(rank: int, store: str) -> None:
    config = resolve(Compile(backend="aot_eager", fullgraph=True))
    plain = stack()
    loss = train_on(plain, 4)
    for shards_first, recomputed in ((False, True), (True, False)):
        torch._dynamo.reset()
        before = len(utils.graph_break_reasons), utils.counters["stats"]["unique_graphs"]
        model = stack()
        layers = list(model.named_children())
        for _, layer in layers:
            if recomputed:
                recompute(layer)
        if shards_first:
            shard(model)
        compiled = compile_model(config, model=model, layers=layers)
        if not shards_first:
            shard(model)
        # Every rank sees the same data, so that their mean is what one process has.
        torch.testing.assert_close(train_on(model, 4), loss)
        torch.testing.assert_close(gradients(model), gradients(plain))
        now = len(utils.graph_break_reasons), utils.counters["stats"]["unique_graphs"]
        assert (now[0] - before[0], now[1] - before[1]) == (0, 1), (shards_first, recomputed, now)
        assert compiled.take() == []


if __name__ == "__main__":
    sys.exit(fork_group(one_rank, WORLD))
