"""The adapter of a job: put beneath its model, and given its first values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from setpoint.adapter.apply import adapt, adapter_parameters
from setpoint.adapter.low_rank import ExpertAdapter, adapters_of
from setpoint.adapter.plan import Described
from setpoint.model.config import Transformer
from setpoint.model.initialize import Constant, Initializer, Normal, Uniform, fill_by
from setpoint.model.parameters import fused_parts_of
from setpoint.model.skeleton import materialize
from setpoint.shapes.placed import as_placed, whole_of
from setpoint.train.build.parameter_groups import trained_parameters

if TYPE_CHECKING:
    from setpoint.train.config import Job


def add_adapter(job: Job, model: nn.Module) -> Described | None:
    """Put the adapter of a job beneath its model, if it has one, and freeze what is not trained.

    Arguments:
        model: whole, on the meta device or with its weights; before ranks divide it.

    Returns:
        what it adapts, trains and freezes; None without one.

    Raises:
        SetpointError: the section does not fit the model.
    """
    if job.adapter is None:
        return None
    fused = fused_parts_of(job.model) if isinstance(job.model, Transformer) else {}
    return adapt(job.adapter, model, trained_parameters(model), fused)


def materialize_adapter(
    model: nn.Module, device: torch.device | str, dtype: torch.dtype | None
) -> None:
    """Give adapters that lie on the meta device memory, whose content is anything."""
    for adapter in adapters_of(model).values():
        if any(each.is_meta for each in adapter.parameters()):
            materialize(adapter, device, dtype or torch.float32)


def adapter_rules(model: nn.Module) -> dict[str, Initializer]:
    """How the parameters of adapters start, by their names in the model."""
    rules: dict[str, Initializer] = {}
    for path, adapter in adapters_of(model).items():
        for name, (kind, spread) in adapter.spreads().items():
            normal = Normal(spread) if spread else Constant(0.0)
            rules[f"{path}.{name}"] = Uniform(spread) if kind == "uniform" else normal
        if adapter.magnitude is not None:
            rules[f"{path}.magnitude"] = Constant(1.0)
    return rules


def start_adapter(model: nn.Module, seed: int) -> None:
    """Give the parameters of adapters their first values; the base has its own."""
    parameters = adapter_parameters(model)
    if parameters:
        fill_by(parameters, adapter_rules(model), seed)
        start_magnitudes(model)


@torch.no_grad()
def start_magnitudes(model: nn.Module) -> None:
    """Set magnitudes to the lengths that rows have with the first update, so that it is all.

    Where ranks hold parts of a weight, all of them take part.
    """
    modules = dict(model.named_modules())
    for path, adapter in adapters_of(model).items():
        if adapter.magnitude is None:
            continue
        holder, _, own = path.rpartition(".")
        name = "weight"
        if isinstance(adapter, ExpertAdapter):
            holder, name = holder.rpartition(".")[0], own
        parameters = dict(modules[holder].named_parameters(recurse=False))
        weight, a, b = (whole_of(each) for each in (parameters[name], *_pair(adapter)))
        merged = weight.to(torch.promote_types(weight.dtype, torch.float32))
        merged = merged + adapter.delta_of(a, b)
        lengths = torch.linalg.vector_norm(merged, dim=adapter.row_dim)
        magnitude = dict(adapter.named_parameters(recurse=False))["magnitude"]
        magnitude.copy_(as_placed(lengths.to(magnitude.dtype), magnitude))


def _pair(adapter: nn.Module) -> tuple[nn.Parameter, nn.Parameter]:
    """A and B themselves: what a module reads by these names may be this rank's part of them."""
    held = dict(adapter.named_parameters(recurse=False))
    return held["a"], held["b"]
