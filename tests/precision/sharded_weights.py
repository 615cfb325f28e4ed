"""Run by test_mixed_precision.py in a process of its own: master weights of two ranks of FSDP2."""

import sys
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from setpoint.config import resolve
from setpoint.parallel.sharding import set_dtypes
from setpoint.precision.config import Precision
from setpoint.precision.mixed_precision import (
    MasterWeights,
    OptimizerParams,
    build_weights,
    cast_parameters,
    shard_dtypes,
    sharding_policy,
    store_in,
)

from ..support.ranks import fork_group

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
    """Gradients of two ranks and two micro-batches, in the dtypes that they are added up in.

    They are 256 and 1 on one rank, 256 and 0 on the other. bf16 has no 257 and no 256.5, and only
    one that adds up whole ones in bf16 comes to 257.
    """
    short: dict[str, Any] = {"params": "bf16"}
    wide: dict[str, Any] = {**short, "reduce": "fp32"}
    cases: tuple[tuple[dict[str, Any], float], ...] = (
        ({}, 256.5),
        ({"reduce": "bf16"}, 256.0),
        (wide, 256.5),
        ({**wide, "master": "fp32"}, 256.5),
        ({**short, "master": "fp32"}, 256.0),
    )
    for (fields, unsharded), is_whole in product(cases, (False, True)):
        config, module = resolve(Precision(compute="bf16", **fields)), Product()
        fully_shard(module, mp_policy=sharding_policy(config))
        full = store_in(config, module, list(module.parameters()))
        set_dtypes([module], shard_dtypes(config, module))
        weights = build_weights(config, module, full, is_sharded=True)
        sharded: Any = module
        for last in (False, True):
            sharded.set_requires_gradient_sync(last or not is_whole)
            module(256.0 if not last else float(rank == 0)).backward()
        (weight,) = module.parameters()
        assert isinstance(weight.grad, DTensor) and weight.grad.dtype == torch.float32
        expected = unsharded if is_whole else 256.5
        assert (whole(weight.grad) == expected).all(), (fields, is_whole, weight.grad)
        weights.grads_to_master()
        (held,) = weights.parameters()
        assert held.dtype == {"fp32": torch.float32, "bf16": torch.bfloat16}[config.updated]
        assert (held is weight) == (config.updated == "fp32")
        assert held.grad is not None and held.grad.dtype == held.dtype


def one_rank(rank: int, store: str) -> None:
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


if __name__ == "__main__":
    sys.exit(fork_group(one_rank, WORLD))
