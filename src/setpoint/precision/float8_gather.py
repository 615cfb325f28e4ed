"""FSDP2's all-gather in float8, for weights with one scale each.

Before each forward pass, one maximum over the ranks of a shard computes the scales of all weights
from their current values, so that optimizers, checkpoints and averages need not handle scales.
Parameters stay plain; only gathered weights are torchao tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

from setpoint.precision.float8 import Float8Product
from setpoint.shapes.protocols import Adapted
from setpoint.shapes.torchao import import_torchao


def gather_in_float8(units: Iterable[nn.Module]) -> int:
    """Make FSDP2 gather the weights of float8 linear layers in float8.

    Arguments:
        units: roots of FSDP2, in memory.

    Returns:
        the number of weights.
    """
    count = 0
    for root in units:
        params = [param for param in _params(root) if _is_product(param)]
        if params:
            for param in params:
                param.__class__ = _float8_class(type(param))
                param._init_extensions()
            # Before FSDP2's own hook, which gathers.
            root.register_forward_pre_hook(_Scales(params), prepend=True)
        count += len(params)
    return count


def _params(root: nn.Module) -> Iterable[Any]:
    for module in root.modules():
        if isinstance(module, FSDPModule):
            group: Any = module._get_fsdp_state()._fsdp_param_group
            yield from () if group is None else group.fsdp_params


def _is_product(param: Any) -> bool:
    """True if a weight is read only by a product in float8."""
    info = param._module_info
    module: nn.Module = info.module
    if info.shared_modules or info.param_name != "weight" or not isinstance(module, Float8Product):
        return False
    # A magnitude is computed from the weight.
    adapter: Any = getattr(module, "adapter", None) if isinstance(module, Adapted) else None
    has_magnitude = adapter is not None and adapter.magnitude is not None
    return module._form is not None and not has_magnitude


class _Scales:
    """Computes the scales of sharded weights."""

    def __init__(self, params: Sequence[Any]) -> None:
        self.params = params
        self.group = params[0].mesh_info.shard_process_group

    @torch.no_grad()
    def __call__(self, *_: Any) -> None:
        if all(param.sharded_state.name == "UNSHARDED" for param in self.params):
            return  # still gathered from the last pass
        shards = [param.sharded_param._local_tensor for param in self.params]
        # Shards on the host are measured there. Ranks may have no part of a small weight.
        norms = [part if part.numel() else part.new_zeros(1) for part in shards]
        largest_norms = torch._foreach_norm(norms, inf)  # pyright: ignore[reportPrivateImportUsage]
        largest = torch.stack(largest_norms)
        # Rounding is monotonic: the largest rounded value is the largest value, rounded.
        largest = largest.to(self.params[0].device, torch.bfloat16).float()
        distributed.all_reduce(largest, distributed.ReduceOp.MAX, group=self.group)
        utils = import_torchao("float8.float8_utils")
        for param, amax in zip(self.params, largest.unbind(), strict=True):
            param.scale = utils.amax_to_scale(amax, param._module_info.module._form[0])


def _float8_class(cls: type[Any]) -> type[Any]:
    if cls not in _CLASSES:
        _CLASSES[cls] = type(cls.__name__, (_Float8Param, cls), {})
    return _CLASSES[cls]


_CLASSES: dict[type[Any], type[Any]] = {}


class _Float8Param(FSDPParam):
    """A weight that FSDP2 gathers in float8."""

    scale: Tensor

    @property
    def _sharded_local_tensor(self) -> Any:
        return _Shard(self)

    def init_unsharded_param(self) -> None:
        is_new = not hasattr(self, "_unsharded_param")
        super().init_unsharded_param()
        if is_new and not hasattr(self, "dtypes"):
            # Products give bf16; the gradients of a unit are reduced in one dtype.
            self._unsharded_param.grad_dtype = self.orig_dtype


class _Shard:
    """Tensor wrapper with the FSDP2 hooks for gathering a weight."""

    def __init__(self, param: Any) -> None:
        self.param = param
        self.dtype, self.settings = param._module_info.module._form

    def to(self, *_: Any, **__: Any) -> _Shard:
        return self

    def size(self) -> torch.Size:
        return self.param.padded_sharded_param_size

    def fsdp_pre_all_gather(
        self, mesh: Any, size: Any, stride: Any, module: Any, policy: Any
    ) -> tuple[tuple[Tensor], tuple[Tensor]]:
        del mesh, size, stride, module, policy
        param = self.param
        # With padding, as on all ranks.
        shard = param._sharded_param_data.view(param.padded_sharded_param_size)
        shard = shard.to(param.device, torch.bfloat16, non_blocking=True)
        utils = import_torchao("float8.float8_utils")
        data = utils.to_fp8_saturated(shard.float() * param.scale, self.dtype)
        # As bytes, which every backend can send.
        return (data.view(torch.uint8),), (param.scale,)

    def fsdp_post_all_gather(
        self, gathered: tuple[Tensor], scales: tuple[Tensor], dtype: torch.dtype, *, out: Any = None
    ) -> tuple[Tensor, tuple[Tensor]] | None:
        del dtype
        (data,), (scale,) = gathered, scales
        if out is not None:
            # The same memory as before.
            getattr(out, "_local_tensor", out)._scale = scale
            return None
        tensors = import_torchao("float8.float8_training_tensor")
        weight = tensors.Float8TrainingTensor(
            data.view(self.dtype),
            scale,
            torch.bfloat16,
            self.settings,
            tensors.GemmInputRole.WEIGHT,
        )
        return weight, (data,)
