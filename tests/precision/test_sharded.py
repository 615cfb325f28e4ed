"""Formats of weights, gradients and products on two ranks of FSDP2, against one process."""

import gc
import weakref
from contextlib import AbstractContextManager
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from setpoint.config import resolve
from setpoint.model.transformer import Transformer
from setpoint.parallel.sharding import set_dtypes
from setpoint.precision.config import Precision
from setpoint.precision.mixed_precision import (
    MasterWeights,
    OptimizerParams,
    build_weights,
    cast_parameters,
    compute_in,
    shard_dtypes,
    sharding_policy,
    store_in,
)

from ..model.families import FAMILIES
from ..model.small import VOCAB, small_model
from ..support.ranks import run_on_ranks

WORLD, UPDATES = 2, 4
CPU = torch.device("cpu")


def shard(model: Transformer, precision: Precision, sets_dtypes: bool = True) -> Transformer:
    policy = sharding_policy(precision)
    for layer in model.layers.values():
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    if sets_dtypes:
        set_dtypes([model], shard_dtypes(precision, model))
    return model


class Bf16Storages(TorchDispatchMode):
    """Finds the storages of bf16 tensors that operators return."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor) and tensor.dtype == torch.bfloat16:
                storage = tensor.untyped_storage()
                self.seen[id(storage)] = weakref.ref(storage)
        return result

    def alive(self) -> int:
        gc.collect()
        return sum(0 if ref() is None else ref().nbytes() for ref in self.seen.values())


def kept(model: Transformer, context: AbstractContextManager[object]) -> int:
    """Bytes in bf16 that are alive after a forward pass, before its context ends."""
    tokens = torch.zeros(1, 4, dtype=torch.long)
    with context, torch.no_grad(), Bf16Storages() as storages:
        assert model(tokens) is not None
        return storages.alive()


def passed(model: Transformer, precision: Any) -> tuple[Tensor, dict[str, Tensor], list[str]]:
    """The logits, the gradients, and the dtypes of what the layers hand on."""
    tokens = torch.randint(VOCAB, (2, 9), generator=torch.Generator().manual_seed(0))
    dtypes: list[str] = []
    for layer in model.layers.values():
        layer.register_forward_hook(lambda _, __, out: dtypes.append(str(out[0].dtype)))
    with compute_in(precision.compute, precision.params, CPU):
        logits = model(tokens)
        logits.float().square().sum().backward()
    found: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        assert grad is not None
        found[name] = grad.full_tensor() if isinstance(grad, DTensor) else grad
    return logits.detach(), found, dtypes


def bf16_is_one_model_sharded_or_not(_: Path) -> None:
    for name, changes in FAMILIES.items():
        for fields in ({"compute": "bf16"}, {"compute": "bf16", "params": "bf16"}):
            precision = resolve(Precision(**fields))
            dtype = getattr(torch, {"fp32": "float32", "bf16": "bfloat16"}[precision.params])
            whole = passed(small_model(seed=3, **changes).to(dtype), precision)
            sharded = small_model(seed=3, **changes).to(dtype)
            # Every rank sees the same data, so that their mean is what one process has.
            found = passed(shard(sharded, precision), precision)
            assert torch.equal(found[0], whole[0]), (name, fields)
            assert found[2] == whole[2] == [str(dtype)] * len(whole[2]), (name, found[2])
            for each, grad in whole[1].items():
                assert torch.equal(found[1][each], grad), (name, fields, each)
    # Autocast by itself keeps all matrices that FSDP2 has freed.
    mixed = resolve(Precision(compute="bf16"))
    model = shard(small_model(seed=3), mixed, sets_dtypes=False)
    assert kept(model, torch.autocast("cpu", torch.bfloat16)) > 0
    assert kept(model, compute_in("bf16", "fp32", CPU)) == 0


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


def gradients_are_added_up_in_the_dtype_of_reduce(_: Path) -> None:
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
            module(256.0 if not last else float(dist.get_rank() == 0)).backward()
        (weight,) = module.parameters()
        assert isinstance(weight.grad, DTensor) and weight.grad.dtype == torch.float32
        expected = unsharded if is_whole else 256.5
        assert (whole(weight.grad) == expected).all(), (fields, is_whole, weight.grad)
        weights.grads_to_master()
        (held,) = weights.parameters()
        assert held.dtype == {"fp32": torch.float32, "bf16": torch.bfloat16}[config.updated]
        assert (held is weight) == (config.updated == "fp32")
        assert held.grad is not None and held.grad.dtype == held.dtype


def weights_are_those_of_one_process(_: Path) -> None:
    for masters in (True, False):
        sharded = model()
        fully_shard(sharded)
        # Every rank sees the same data, so that their mean is what one process has.
        found, wanted = trained(sharded, masters), trained(model(), masters)
        assert {p.dtype for p in found[4:]} == {torch.float32 if masters else torch.bfloat16}
        for ours, theirs in zip(found, wanted, strict=True):
            assert torch.equal(ours, theirs), (ours - theirs).abs().max()


def gradients_of_dtensors_add_up_in_another_format(_: Path) -> None:
    """Without an engine that takes care of them."""
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


def test_two_ranks_equal_one_process() -> None:
    run_on_ranks(
        WORLD,
        bf16_is_one_model_sharded_or_not,
        weights_are_those_of_one_process,
        gradients_are_added_up_in_the_dtype_of_reduce,
        gradients_of_dtensors_add_up_in_another_format,
    )
