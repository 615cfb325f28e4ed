"""The modules whose weights FSDP2 gathers together, and in which order it asks for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from setpoint.config import SetpointError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from setpoint.parallel.config import Sharding


def units_of(
    config: Sharding,
    model: nn.Module,
    layers: Sequence[tuple[str, nn.Module]],
    is_part: bool = False,
) -> list[list[nn.Module]]:
    """Find the units of a model, what lies within others first; what is left is one more.

    Arguments:
        layers: what the model repeats, by qualified name and in order.
        is_part: whether other ranks have the rest of the model, where a pattern may match.

    Raises:
        SetpointError: a pattern of `parallel.sharding.units` matches no module that has weights
            and is no unit yet.
    """
    held = {module for _, module in layers}
    extra: list[nn.Module] = []
    for index, pattern in enumerate(config.units):
        matching = [
            module
            for name, module in model.named_modules()
            if re.fullmatch(pattern, name)
            and module is not model
            and module not in held
            and not hasattr(module, "set_requires_all_reduce")  # FSDP2 has it already
            and any(True for _ in module.parameters())
        ]
        if not matching and not is_part:
            names = [n for n, module in model.named_modules() if n and module not in held]
            raise SetpointError(
                f"parallel.sharding.units.{index} = {pattern!r} matches no module that has weights "
                f"and is no layer\nValid: patterns of whole names, such as "
                f"{', '.join(re.escape(name) for name in names[:5])}"
            )
        extra += [module for module in matching if module not in extra]
    # Inner ones first, so that outer ones find them taken.
    depth = {module: name.count(".") for name, module in model.named_modules()}
    extra.sort(key=lambda module: -depth[module])
    step = config.layers_per_unit
    within = {module for _, layer in layers for module in layer.modules()}
    inner = [[module] for module in extra if module in within]
    outer = [[module] for module in extra if module not in within]
    together = [
        [module for _, module in layers[first : first + step]]
        for first in range(0, len(layers), step)
    ]
    return [*inner, *together, *outer]


def prefetch(config: Sharding, model: nn.Module, units: Sequence[Sequence[nn.Module]]) -> None:
    """Tell each unit of a sharded model which others to ask for while it is computed.

    Arguments:
        units: all of them; they are taken to be computed in the order of the model's modules.
    """
    order = {module: number for number, module in enumerate(model.modules())}
    firsts: list[Any] = sorted((unit[0] for unit in units), key=order.__getitem__)
    for number, unit in enumerate(firsts):
        if ahead := config.forward_prefetch:
            unit.set_modules_to_forward_prefetch(firsts[number + 1 : number + 1 + ahead])
        if ahead := config.backward_prefetch:
            before = firsts[max(0, number - ahead) : number][::-1]
            unit.set_modules_to_backward_prefetch(before)


def offloading(config: Sharding, mesh: DeviceMesh) -> dict[str, Any]:
    """Say where a unit keeps its weights, as `fully_shard` is told; empty for the device."""
    if not config.offload:
        return {}
    from torch.distributed.fsdp import CPUOffloadPolicy

    # Pinning memory needs an accelerator.
    return {"offload_policy": CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu")}
