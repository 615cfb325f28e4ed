"""Run by test_sharding.py in a process of its own: two ranks check the model taken apart.

The ranks are forked from a parent that has imported torch and run nothing, which is faster than
starting two interpreters.
"""

import os
import sys
import tempfile
import traceback

import torch
import torch.distributed as dist
from small import VOCAB, small_config, small_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from setpoint.model.initialize import initialize
from setpoint.model.transformer import Transformer

WORLD = 2


def fully_sharded(rank: int, tokens: torch.Tensor) -> None:
    whole = small_model(seed=3)
    with torch.device("meta"):
        model = Transformer(small_config(), vocab_size=VOCAB)
    for layer in model.layers.values():
        fully_shard(layer)
    fully_shard(model)
    model.to_empty(device="cpu")
    initialize(model, 3)
    for name, parameter in model.named_parameters():
        expected = dict(whole.named_parameters())[name]
        assert torch.equal(parameter.to_local(), expected.chunk(WORLD)[rank]), name
    logits, expected_logits = model(tokens), whole(tokens)
    assert torch.equal(logits, expected_logits)
    logits.square().sum().backward()
    expected_logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        expected = dict(whole.named_parameters())[name].grad
        torch.testing.assert_close(parameter.grad.full_tensor(), expected, rtol=1e-4, atol=1e-4)


def tensor_parallel(rank: int, tokens: torch.Tensor) -> None:
    whole = small_model(seed=3)
    model = Transformer(small_config(), vocab_size=VOCAB)
    plan = {
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.output": RowwiseParallel(),
        "feed_forward.gate": ColwiseParallel(),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.down": RowwiseParallel(),
    }
    mesh = init_device_mesh("cpu", (WORLD,))
    for layer in model.layers.values():
        parallelize_module(layer, mesh, plan)
    initialize(model, 3)
    query = model.layers["0"].attention.query.weight.to_local()
    assert torch.equal(query, whole.layers["0"].attention.query.weight.chunk(WORLD)[rank])
    torch.testing.assert_close(model(tokens), whole(tokens), rtol=1e-4, atol=1e-4)


def one_rank(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    tokens = torch.randint(VOCAB, (2, 9), generator=torch.Generator().manual_seed(0))
    fully_sharded(rank, tokens)
    tensor_parallel(rank, tokens)
    dist.destroy_process_group()


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(WORLD):
            child = os.fork()
            if child == 0:
                try:
                    one_rank(rank, f"{folder}/store")
                except BaseException:
                    traceback.print_exc()
                    sys.stderr.flush()
                    os._exit(1)
                os._exit(0)
            children.append(child)
        return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(main())
