"""Run by test_wait_for_collective.py in its own process: two ranks with half of a model each.

The ranks are forked from a parent that has imported torch and run nothing.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from ..ranks import fork
from .small import VOCAB, small_model

WORLD = 2
PLAN = {
    "feed_forward.gate": ColwiseParallel(),
    "feed_forward.up": ColwiseParallel(),
    "feed_forward.down": RowwiseParallel(),
}


def split(model: nn.Module) -> None:
    """Tensor parallelism of the embedding and the feed-forward networks."""
    mesh = init_device_mesh("cpu", (WORLD,))
    embedding = RowwiseParallel(input_layouts=Replicate())
    parallelize_module(model, mesh, {"embedding": embedding})
    for layer in model.layers.values():
        parallelize_module(layer, mesh, PLAN)


def one_rank(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    tokens = torch.randint(VOCAB, (2, 8), generator=torch.Generator().manual_seed(0))
    whole, model = small_model(seed=3), small_model(seed=3)
    split(model)
    # What makes the case: the embedding's result has not been waited for.
    assert isinstance(model.embedding(tokens), AsyncCollectiveTensor)
    for layer in model.layers.values():
        layer.compile(backend="aot_eager")
    logits, expected = model(tokens), whole(tokens)
    torch.testing.assert_close(logits, expected)
    logits.square().sum().backward()
    expected.square().sum().backward()
    for name, parameter in model.named_parameters():
        theirs = whole.get_parameter(name).grad
        ours = parameter.grad
        assert ours is not None and theirs is not None, name
        full = ours.full_tensor() if hasattr(ours, "full_tensor") else ours
        torch.testing.assert_close(full, theirs, rtol=1e-4, atol=1e-4)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(fork(one_rank, WORLD))
