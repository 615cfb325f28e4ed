"""Run by test_clip.py in a process of its own: two ranks clip gradients that they share."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from setpoint.optim.clip import clip_gradients

from ..support.ranks import fork

WORLD = 2


def network() -> nn.Module:
    torch.manual_seed(0)
    # Rows that two ranks cannot halve, and fewer rows than ranks.
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))


def with_gradients(model: nn.Module) -> nn.Module:
    data = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    model(data).square().sum().mul(30.0).backward()
    return model


def check(max_norm: float | None, max_value: float | None, parts: tuple[bool, ...]) -> None:
    whole, shared = with_gradients(network()), network()
    for part, is_shared in zip((shared[0], shared[2]), parts, strict=True):
        if is_shared:
            fully_shard(part)
    if all(parts):
        fully_shard(shared)
    with_gradients(shared)
    expected = clip_gradients(whole.parameters(), max_norm, max_value)
    norm = clip_gradients(shared.parameters(), max_norm, max_value)
    assert not isinstance(norm, DTensor)
    torch.testing.assert_close(norm, expected, rtol=1e-6, atol=0.0)
    for one, other in zip(shared.parameters(), whole.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        full = one.grad.full_tensor() if isinstance(one.grad, DTensor) else one.grad
        torch.testing.assert_close(full, other.grad, rtol=1e-6, atol=1e-7)


def rank(number: int, store: str) -> None:
    dist.init_process_group("gloo", f"file://{store}", rank=number, world_size=WORLD)
    init_device_mesh("cpu", (WORLD,))
    for parts in ((True, True), (True, False)):
        check(0.5, None, parts)
        check(None, 0.1, parts)
        check(None, None, parts)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(fork(rank, WORLD))
