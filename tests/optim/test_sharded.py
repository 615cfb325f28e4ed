"""Two ranks of FSDP2 step as one process does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from setpoint.config import resolve
from setpoint.optim import muon
from setpoint.optim.config import (
    AdafactorConfig,
    AdamWConfig,
    AnyPrecisionAdamWConfig,
    LionConfig,
    MuonConfig,
    ScheduleFreeAdamWConfig,
)
from setpoint.optim.muon import AllGatherExchange, AllToAllExchange

from ..support.ranks import run_on_ranks

WORLD, STEPS = 2, 3
WHOLE = ("step", "row_var", "col_var")
Make = Callable[[list[dict[str, Any]]], Any]


class Model(nn.Module):
    """Matrices of which rows do not divide evenly, experts that do and do not, and a vector."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tall = nn.Parameter(torch.randn(7, 4))
        self.wide = nn.Parameter(torch.randn(3, 8))
        self.twin = nn.Parameter(torch.randn(7, 4))
        self.third = nn.Parameter(torch.randn(7, 4))
        self.single = nn.Parameter(torch.randn(1, 6))
        self.experts = nn.Parameter(torch.randn(4, 6, 5))
        self.three = nn.Parameter(torch.randn(3, 6, 5))
        self.vector = nn.Parameter(torch.randn(5))
        self.to(dtype)


def groups(model: nn.Module, is_muon: bool) -> list[dict[str, Any]]:
    """Matrices and vectors; for Muon, which algorithm each group gets."""
    named = list(model.named_parameters())
    parts = [[pair for pair in named if (pair[1].ndim >= 2) is matrix] for matrix in (True, False)]
    names = ("muon", "adamw")
    return [
        {"params": part, "weight_decay": 0.1, **({"algorithm": name} if is_muon else {})}
        for part, name in zip(parts, names, strict=True)
    ]


def step(model: nn.Module, optimizer: Any, number: int) -> None:
    """A step with gradients by hand, the same on all ranks and in one process."""
    for index, p in enumerate(model.parameters()):
        generator = torch.Generator().manual_seed(100 * number + index)
        whole = torch.randn(p.shape, generator=generator).to(p.dtype)
        if isinstance(p, DTensor):
            mesh, placements = p.device_mesh, p.placements
            whole = distribute_tensor(whole, mesh, placements, src_data_rank=None)
        p.grad = whole
    for group in optimizer.param_groups:
        group["lr"] = 0.02 * (number + 1)
    optimizer.step()
    optimizer.zero_grad()


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [
        (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
        for p in model.parameters()
    ]


def compare(make: Make, dtype: torch.dtype, is_muon: bool = False, rounding: float = 0.0) -> None:
    """One process beside two ranks."""
    alone, sharded = Model(dtype), Model(dtype)
    fully_shard(sharded)
    one, two = make(groups(alone, is_muon)), make(groups(sharded, is_muon))
    for number in range(STEPS):
        step(alone, one, number)
        step(sharded, two, number)
    for mine, whole in zip(weights(sharded), weights(alone), strict=True):
        # Each rank has some of the matrices and experts only, multiplied in smaller batches, which
        # may round the last bit of bf16 elsewhere. They have moved by 0.1 in all.
        atol = 0.002 if is_muon and mine.ndim > 1 else rounding
        torch.testing.assert_close(mine, whole, rtol=0, atol=atol)
    for state in two.state.values():
        assert all(isinstance(v, DTensor) for name, v in state.items() if name not in WHOLE)
    if hasattr(two, "averaged"):
        before = weights(sharded)
        with one.averaged(), two.averaged():
            averages = zip(weights(sharded), weights(alone), strict=True)
            assert all(torch.equal(a, b) for a, b in averages)
        assert all(torch.equal(a, b) for a, b in zip(weights(sharded), before, strict=True))


def each_rank_has_its_share() -> None:
    """Matrices are made orthogonal once in all, on both ranks, along each way to divide them."""
    seen: list[int] = []
    real = muon.orthogonalize

    def watched(matrices: torch.Tensor, steps: int) -> torch.Tensor:
        seen.append(len(matrices))
        return real(matrices, steps)

    mesh = init_device_mesh("cpu", (1, WORLD), mesh_dim_names=("one", "all"))
    ways = [
        (AllToAllExchange, (Replicate(), Shard(0))),
        (AllToAllExchange, (Shard(0), Shard(1))),
        (AllGatherExchange, (Replicate(), Shard(1))),  # as where several dimensions divide a matrix
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(muon, "orthogonalize", watched)
        for kind, way in ways:
            patch.setattr("setpoint.optim.muon.AllToAllExchange", kind)
            torch.manual_seed(0)
            whole = [nn.Parameter(torch.randn(7, 5)) for _ in range(5)]
            held = [nn.Parameter(distribute_tensor(p.data, mesh, way)) for p in whole]
            config = resolve(MuonConfig())
            for given in (whole, held):
                seen.clear()
                optimizer = config.build(parameters=[(str(i), p) for i, p in enumerate(given)])
                for number, p in enumerate(given):
                    gradient = torch.randn(7, 5, generator=torch.Generator().manual_seed(number))
                    is_held = isinstance(p, DTensor)
                    p.grad = distribute_tensor(gradient, mesh, way) if is_held else gradient
                optimizer.step()
            counts: list[Any] = [None] * WORLD
            dist.all_gather_object(counts, sum(seen))
            assert counts == [3, 2], counts
            for mine, other in zip(held, whole, strict=True):
                assert isinstance(mine, DTensor)
                torch.testing.assert_close(mine.full_tensor(), other.data, rtol=0, atol=0.002)


def noise_is_that_of_one_rank() -> None:
    """Elements are rounded alike along each way to divide a weight, in blocks of few rows."""
    mesh = init_device_mesh("cpu", (WORLD,))
    config = resolve(AnyPrecisionAdamWConfig(rounding="stochastic"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("setpoint.optim.elementwise.BLOCK", 12)
        for way in (Shard(0), Shard(1), Replicate()):
            torch.manual_seed(0)
            alone = nn.Parameter(torch.randn(7, 5).bfloat16())
            divided = nn.Parameter(distribute_tensor(alone.data, mesh, [way]))
            gradient = torch.randn(7, 5).bfloat16()
            for p, g in ((alone, gradient), (divided, distribute_tensor(gradient, mesh, [way]))):
                optimizer = config.build(parameters=[("w", p)])
                for _ in range(STEPS):
                    p.grad = g
                    optimizer.step()
            assert isinstance(divided.data, DTensor)
            assert torch.equal(divided.data.full_tensor(), alone.data)


def steps_are_equal(_: Path) -> None:
    for fields in ({}, {"nesterov": False, "adjust_lr": "match_rms_adamw"}):
        config = resolve(MuonConfig(**fields))
        for state in (None, torch.bfloat16):
            compare(
                lambda given, c=config, s=state: c.build(parameters=given, state_dtype=s),
                torch.float32,
                is_muon=True,
            )
    each_rank_has_its_share()
    cautious = resolve(MuonConfig(cautious_weight_decay=True))  # with AdamW inside
    compare(lambda given: cautious.build(parameters=given), torch.float32, is_muon=True)
    fused = resolve(AdamWConfig(cautious_weight_decay=True))
    compare(lambda given: fused.build(parameters=given), torch.float32, rounding=1e-7)
    lion = resolve(LionConfig(cautious_weight_decay=True))
    free = resolve(ScheduleFreeAdamWConfig())
    factored = resolve(AdafactorConfig(weight_decay=0.1))
    nearest = resolve(AnyPrecisionAdamWConfig(rounding="nearest"))
    compare(lambda given: lion.build(parameters=given), torch.float32)
    compare(lambda given: free.build(parameters=given), torch.float32)
    compare(lambda given: factored.build(parameters=given), torch.float32, rounding=1e-6)
    compare(lambda given: nearest.build(parameters=given), torch.bfloat16)
    noise_is_that_of_one_rank()


def test_two_ranks_equal_one_process() -> None:
    run_on_ranks(WORLD, steps_are_equal)
