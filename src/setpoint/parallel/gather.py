"""Dtypes of FSDP2 for gathered weights and reduced gradients, per weight."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

from setpoint.shapes.placed import ShardDtypes, ShardedWeight


def sharded_weights(units: Iterable[nn.Module]) -> Iterator[ShardedWeight]:
    """Find the weights that FSDP2 shards in modules to which it was applied."""
    return (_weight(param) for param in _params(units))


def set_dtypes(units: Iterable[nn.Module], choose: Callable[[ShardedWeight], ShardDtypes]) -> None:
    """Choose the dtypes of each floating point weight, in place of those of the unit's policy.

    Arguments:
        units: modules that FSDP2 was applied to, in their memory.
        choose: called with each weight; `grad` and `shard_grad` of those that a unit trains are
            the same.
    """
    for param in _params(units):
        weight = _weight(param)
        stored = weight.shard.dtype
        if not stored.is_floating_point:
            continue
        dtypes = choose(weight)
        if dtypes != (stored, stored, stored):
            # The optimizer may share the memory of the shard, which FSDP2 would replace if padded.
            param.reset_sharded_param()
            param.__class__ = _CastParam
            param.dtypes = dtypes


def _params(units: Iterable[nn.Module]) -> Iterator[Any]:
    for module in chain.from_iterable(unit.modules() for unit in units):
        if isinstance(module, FSDPModule):
            group: Any = module._get_fsdp_state()._fsdp_param_group
            if group is not None:  # all weights lie in units within
                yield from group.fsdp_params


def _weight(param: Any) -> ShardedWeight:
    info = param._module_info
    modules = [(info.module, info.param_name)]
    modules += zip(info.shared_modules, info.shared_param_names, strict=True)
    return ShardedWeight(modules, info.module._parameters[info.param_name])


class _CastParam(FSDPParam):
    """FSDP2 parameter with dtypes different from those of its unit.

    Where the weights of a unit differ, FSDP2 gathers them as bytes.
    """

    dtypes: ShardDtypes

    def init_dtype_attrs(self, mp_policy: Any) -> None:
        stored, (gathered, _, shard_grad) = self.sharded_param.dtype, self.dtypes
        self.param_dtype = None if gathered == stored else gathered
        self.reduce_dtype = mp_policy.reduce_dtype
        # FSDP2 casts reduced gradients to it.
        self.orig_dtype = shard_grad

    def init_unsharded_param(self) -> None:
        is_new = not hasattr(self, "_unsharded_param")
        super().init_unsharded_param()
        if is_new:
            self._unsharded_param.grad_dtype = self.dtypes.grad
