"""Run by test_weights.py in a process of its own: master weights of two ranks of FSDP2.

The ranks are forked from a parent that has imported torch and run nothing, which is faster than
starting two interpreters.
"""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from setpoint.config import resolve
from setpoint.precision.build import build_weights, sharding_policy, store_in
from setpoint.precision.config import Precision
from setpoint.precision.weights import MasterWeights, OptimizerParams, cast_parameters

from ..ranks import fork

WORLD, UPDATES = 2, 4


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 7), nn.GELU(), nn.Linear(7, 3))


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def trained(module: nn.Module, masters: bool) -> list[Tensor]:
    """The model's weights and those of the optimizer after some updates of two micro-batches."""
    full = {name: p.detach() for name, p in module.named_parameters()}
    cast_parameters(module, torch.bfloat16)
    weights = MasterWeights(module, full) if masters else OptimizerParams(module)
    optimizer = torch.optim.AdamW(weights.named_parameters(), lr=0.01, foreach=True)
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)).bfloat16()
    for _ in range(UPDATES):
        for part in (x, -x):
            module(part).float().square().sum().backward()
        weights.grads_to_master()
        optimizer.step()
        weights.master_to_params()
        optimizer.zero_grad()
    saved = {name: whole(tensor).clone() for name, tensor in weights.state().items()}
    assert (len(saved) == 4) == masters
    found = [*module.parameters(), *weights.parameters()]
    return [whole(each).detach().clone() for each in found]


class Product(nn.Module):
    """One weight, whose gradient is what it is multiplied with."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 2))

    def forward(self, factor: float) -> Tensor:
        return (self.weight * factor).sum()


def reduced(rank: int) -> None:
    """Gradients of two ranks and two micro-batches, in the dtype that they are reduced in.

    The mean of 257 and 256 has ten binary digits, of which bf16 keeps eight.
    """
    for reduce, expected in ((None, 513.0), ("fp32", 513.0), ("bf16", 512.0)):
        config, module = resolve(Precision(compute="bf16", reduce=reduce)), Product()
        full = store_in(config, module)
        fully_shard(module, mp_policy=sharding_policy(config))
        weights = build_weights(config, module, full)
        for _ in range(2):
            module(257.0 if rank == 0 else 256.0).backward()
        weights.grads_to_master()
        (held,) = weights.parameters()
        assert isinstance(held.grad, DTensor) and held.grad.dtype == torch.float32
        assert (whole(held.grad) == expected).all(), (reduce, held.grad)
    wide = resolve(Precision(compute="bf16", params="bf16", reduce="fp32"))
    assert sharding_policy(wide).reduce_dtype is torch.float32


def one_rank(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    for masters in (True, False):
        sharded = model()
        fully_shard(sharded)
        # Every rank sees the same data, so that their mean is what one process has.
        found, wanted = trained(sharded, masters), trained(model(), masters)
        assert {p.dtype for p in found[4:]} == {torch.float32 if masters else torch.bfloat16}
        for ours, theirs in zip(found, wanted, strict=True):
            assert torch.equal(ours, theirs), (ours - theirs).abs().max()
    reduced(rank)
    # Sums in another format, for DTensors that no engine takes care of.
    part = next(model().parameters()).detach()
    mesh = init_device_mesh("cpu", (WORLD,))
    weight = nn.Parameter(distribute_tensor(part, mesh))
    module = nn.Module()
    module.register_parameter("weight", weight)
    cast_parameters(module, torch.bfloat16)
    weights = OptimizerParams(module, torch.float32)
    for _ in range(3):
        (weight * 1.0).sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    weights.grads_to_master()
    (held,) = weights.parameters()
    assert isinstance(held.grad, DTensor)
    assert held.grad.dtype == torch.bfloat16
    assert torch.equal(whole(held.grad), torch.full_like(part, 3.0, dtype=torch.bfloat16))
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(fork(one_rank, WORLD))
