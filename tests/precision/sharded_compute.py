"""Run by test_mixed_precision.py: compute = bf16 is one model, sharded or not."""

import gc
import sys
import weakref
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from setpoint.config import resolve
from setpoint.model.transformer import Transformer
from setpoint.parallel.sharding import set_dtypes
from setpoint.precision.config import Precision
from setpoint.precision.mixed_precision import compute_in, shard_dtypes, sharding_policy

from ..model.families import FAMILIES
from ..model.small import VOCAB, small_model
from ..support.ranks import fork_group

WORLD, CPU = 2, torch.device("cpu")


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


def one_rank(rank: int, store: str) -> None:
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


if __name__ == "__main__":
    sys.exit(fork_group(one_rank, WORLD))
