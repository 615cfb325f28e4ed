"""Sharding with FSDP2: units of modules, their prefetch, and the dtypes of each weight."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.torch_version import TorchVersion

from setpoint.config import SetpointError
from setpoint.parallel.pipeline import Stage
from setpoint.shapes.placed import ShardDtypes, ShardedWeight
from setpoint.shapes.protocols import HasUnits

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy

    from setpoint.parallel.config import Parallel, Sharding


def shard(
    config: Parallel,
    mesh: DeviceMesh,
    model: nn.Module,
    layers: Sequence[tuple[str, nn.Module]],
    policy: MixedPrecisionPolicy,
    ignored: set[nn.Parameter],
) -> None:
    """Shard the parameters of a model along the axis `shard` (FSDP2).

    Each layer is gathered and freed separately, as are the units that the model names around the
    layers; the rest is one more unit. Gradients are summed over all ranks, not averaged: the loss
    is divided by the count of all ranks.

    Arguments:
        ignored: parameters that are not sharded, and stay unchanged.
    """
    allow_integers()
    # One axis is plain sharding; two are HSDP: shards within, replicas across.
    mesh = mesh["replicate", "shard"] if config.copies > 1 else mesh["shard"]
    given: dict[str, Any] = {"mesh": mesh, "mp_policy": policy, **offloading(config.sharding, mesh)}
    cut = isinstance(model, Stage)
    part = model.model if isinstance(model, Stage) else model
    if ignored := ignored.union(replicated_parameters(config, part, is_part=cut).values()):
        given["ignored_params"] = ignored
    units = [*units_of(config.sharding, part, layers, is_part=cut), [model]]
    ends = [units_around(part)[-1:], [[model]]]
    for unit in units:
        # Weights after the layers are needed again immediately, and a stage by the next
        # micro-batch.
        frees = not cut and not any(unit in end for end in ends)
        reshard = frees if config.reshard is None else config.reshard
        modules = unit if len(unit) > 1 else unit[0]
        fully_shard(modules, reshard_after_forward=reshard, **given)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)
    prefetch(config.sharding, model, units, isinstance(part, HasUnits))


def replicated_parameters(
    config: Parallel, model: nn.Module, is_part: bool = False
) -> dict[str, nn.Parameter]:
    """Find the parameters that `parallel.sharding.replicated` keeps whole, by qualified name.

    Arguments:
        is_part: see `units_of`.

    Raises:
        SetpointError: a pattern matches no weight, or an expert weight divided among ranks.
    """
    named, replicated = dict(model.named_parameters()), dict[str, nn.Parameter]()
    for index, pattern in enumerate(config.sharding.replicated):
        matching = {name: p for name, p in named.items() if re.search(pattern, name)}
        experts = [name for name in matching if config.divides_experts and "experts." in name]
        if experts or not (matching or is_part):
            match = f"{experts[0]}, of experts that ranks divide" if experts else "no parameter"
            raise SetpointError(
                f"parallel.sharding.replicated.{index} = {pattern!r} matches {match}\n"
                f"Valid: patterns of names such as {next(iter(named))}"
            )
        replicated |= matching
    return replicated


def allow_integers() -> None:
    """Let FSDP2 shard integers, such as the codes of quantized weights, in any PyTorch version.

    Before 2.13, FSDP2 first makes each shard require gradients, which integers cannot have.
    """
    if TorchVersion(torch.__version__) >= "2.13":
        return
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    def parameter(data: Tensor, requires_grad: bool = True) -> nn.Parameter:
        return nn.Parameter(data, requires_grad and data.is_floating_point())

    names: Any = SimpleNamespace(Module=nn.Module, Parameter=parameter)
    _fsdp_param.nn = names  # pyright: ignore[reportPrivateImportUsage]


def units_of(
    config: Sharding,
    model: nn.Module,
    layers: Sequence[tuple[str, nn.Module]],
    is_part: bool = False,
) -> list[list[nn.Module]]:
    """Find the FSDP2 units of a model, inner ones first; the rest is one more unit.

    Arguments:
        layers: the repeated layers, by qualified name and in order.
        is_part: whether the rest of the model, which a pattern may match, is on other ranks.

    Raises:
        SetpointError: a pattern of `parallel.sharding.units` matches no module that has weights and
            is not a unit yet.
    """
    outside = units_around(model)
    taken = {module for _, module in layers}.union(*outside)
    extra: list[nn.Module] = []
    for index, pattern in enumerate(config.units):
        matching = [
            module
            for name, module in model.named_modules()
            if re.fullmatch(pattern, name)
            and module is not model
            and module not in taken
            and not hasattr(module, "set_requires_all_reduce")  # FSDP2 manages it already
            and any(True for _ in module.parameters())
        ]
        if not matching and not is_part:
            names = [n for n, module in model.named_modules() if n and module not in taken]
            raise SetpointError(
                f"parallel.sharding.units.{index} = {pattern!r} matches no module that has weights "
                f"and is not a unit yet\nValid: patterns of whole names, such as "
                f"{', '.join(re.escape(name) for name in names[:5])}"
            )
        extra += [module for module in matching if module not in extra]
    # Inner ones first, so that outer ones skip their weights.
    depth = {module: name.count(".") for name, module in model.named_modules()}
    extra.sort(key=lambda module: -depth[module])
    step = config.layers_per_unit
    within = {module for _, layer in layers for module in layer.modules()}
    inner = [[module] for module in extra if module in within]
    outer = [[module] for module in extra if module not in within]
    grouped = [
        [module for _, module in layers[first : first + step]]
        for first in range(0, len(layers), step)
    ]
    return [*inner, *grouped, *outer, *outside]


def units_around(model: nn.Module) -> list[list[nn.Module]]:
    """Units that a model names before and after its layers; empty if it names none."""
    return model.units_around_layers() if isinstance(model, HasUnits) else []


class FirstUnits:
    """The first units of the forward pass, which are last in the backward pass.

    These are the weights on both sides of the layers or, if the model names its units, the first
    layer and the weights before the layers, such as the embedding. They stay gathered between the
    micro-batches of a step, because the next one would wait for them.
    """

    def __init__(self, model: nn.Module) -> None:
        before = {module for unit in units_around(model)[:1] for module in unit}
        units: list[Any] = [unit for unit in model.modules() if isinstance(unit, FSDPModule)]
        layers = [unit for unit in units[1:] if unit not in before] if before else []
        first = [unit for unit in units if unit in before][:1]
        # The update of an adapter is a product.
        self._lookups = [unit for unit in first if not any(unit.children())]
        self._first_units = [model, *first, *layers[:1]]

    def keep(self, last: bool) -> None:
        """Set whether the next backward pass is the last of a step."""
        for unit in self._first_units:
            unit.set_reshard_after_backward(last, recurse=False)
        for unit in self._lookups:
            # Gradients of rows do not need the weights, which are gathered for the next forward
            # pass.
            unit.set_unshard_in_backward(not last)


def prefetch(
    config: Sharding,
    model: nn.Module,
    units: Sequence[Sequence[nn.Module]],
    is_ordered: bool = False,
) -> None:
    """Set the prefetch order of the units of a sharded model.

    Arguments:
        units: all units, assumed to be computed in the order of the model's modules.
        is_ordered: whether the model declares that order.
    """
    order = {module: number for number, module in enumerate(model.modules())}
    heads: list[Any] = sorted((unit[0] for unit in units), key=order.__getitem__)
    for number, unit in enumerate(heads):
        if ahead := config.forward_prefetch or int(is_ordered):
            unit.set_modules_to_forward_prefetch(heads[number + 1 : number + 1 + ahead])
        if ahead := config.backward_prefetch:
            before = heads[max(0, number - ahead) : number][::-1]
            unit.set_modules_to_backward_prefetch(before)


def offloading(config: Sharding, mesh: DeviceMesh) -> dict[str, Any]:
    """The offload arguments of `fully_shard`; empty without offload."""
    if not config.offload:
        return {}
    from torch.distributed.fsdp import CPUOffloadPolicy

    # Pinning memory needs an accelerator.
    return {"offload_policy": CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu")}


def sharded_weights(units: Iterable[nn.Module]) -> Iterator[ShardedWeight]:
    """Find the weights sharded by FSDP2 in modules to which it was applied."""
    return (_weight(param) for param in _params(units))


def set_dtypes(units: Iterable[nn.Module], choose: Callable[[ShardedWeight], ShardDtypes]) -> None:
    """Choose the dtypes of each floating-point weight, overriding the policy of its unit.

    Arguments:
        units: modules that FSDP2 was applied to, with allocated memory.
        choose: called with each weight; must return the same `grad` and `shard_grad` for all
            trained weights of a unit.
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
            if group is not None:  # all weights are in inner units
                yield from group.fsdp_params


def _weight(param: Any) -> ShardedWeight:
    info = param._module_info
    modules = [(info.module, info.param_name)]
    modules += zip(info.shared_modules, info.shared_param_names, strict=True)
    return ShardedWeight(modules, info.module._parameters[info.param_name])


class _CastParam(FSDPParam):
    """FSDP2 parameter whose dtypes differ from those of its unit.

    If the weights of a unit have different dtypes, FSDP2 gathers them as bytes.
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
