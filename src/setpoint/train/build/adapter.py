"""Weights of adapters: initialization, updates, base weights and merges (ReLoRA)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from setpoint.adapter.low_rank import ExpertAdapter, LowRank, adapter_parameters, adapters_of
from setpoint.adapter.quantized_weight import QuantizedWeight
from setpoint.adapter.targets import CHILD
from setpoint.model.build import materialize
from setpoint.model.initialize import ConstantInit, Initializer, NormalInit, UniformInit, fill_by
from setpoint.shapes.placed import put, whole_of
from setpoint.shapes.stored import CHILD as QUANTIZED

if TYPE_CHECKING:
    from setpoint.precision.mixed_precision import OptimizerParams

Base = nn.Parameter | QuantizedWeight


def adapter_rules(model: nn.Module, after_merge: bool = False) -> dict[str, Initializer]:
    """Initializers of adapter parameters, by their names in the model; see `LowRank.spreads`."""
    rules: dict[str, Initializer] = {}
    for path, adapter in adapters_of(model).items():
        for name, (kind, spread) in adapter.spreads(after_merge).items():
            normal = NormalInit(spread) if spread else ConstantInit(0.0)
            rules[f"{path}.{name}"] = UniformInit(spread) if kind == "uniform" else normal
        if adapter.magnitude is not None:
            rules[f"{path}.magnitude"] = ConstantInit(1.0)
    return rules


def start_adapter(
    model: nn.Module,
    seed: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> None:
    """Allocate adapter parameters on the meta device, and initialize them.

    The parameters of the base are initialized elsewhere.
    """
    for adapter in adapters_of(model).values():
        if any(param.is_meta for param in adapter.parameters()):
            materialize(adapter, device, dtype or torch.float32)
    parameters = adapter_parameters(model)
    if parameters:
        fill_by(parameters, adapter_rules(model), seed)
        start_magnitudes(model)


@torch.no_grad()
def start_magnitudes(model: nn.Module) -> None:
    """Initialize magnitudes to the row norms with the initial update.

    All ranks that have a part of a weight must call it.
    """
    for adapter, weight, params in adapters_with_weights(model).values():
        if adapter.magnitude is not None:
            merged = full_base(weight) + full_update(adapter, params)
            lengths = torch.linalg.vector_norm(merged, dim=adapter.row_dim)
            put(params["magnitude"], lengths)


def adapters_with_weights(
    model: nn.Module,
) -> dict[str, tuple[LowRank, Base, dict[str, nn.Parameter]]]:
    """Find each adapter of a model, with the weight that it changes and its parameters.

    The result contains the parameters themselves, because a module's attributes may return only
    this rank's part.
    """
    modules = dict(model.named_modules())
    adapters: dict[str, tuple[LowRank, Base, dict[str, nn.Parameter]]] = {}
    for path, adapter in adapters_of(model).items():
        holder, _, name_in_layer = path.rpartition(".")
        name, child = "weight", QUANTIZED
        if isinstance(adapter, ExpertAdapter):
            holder, name, child = (
                holder.rpartition(".")[0],
                name_in_layer,
                f"{QUANTIZED}.{name_in_layer}",
            )
        quantized = modules.get(f"{holder}.{child}")
        base = dict(modules[holder].named_parameters(recurse=False))
        params = dict(adapter.named_parameters(recurse=False))
        weight = quantized if isinstance(quantized, QuantizedWeight) else base[name]
        adapters[path] = adapter, weight, params
    return adapters


def full_base(weight: Base) -> Tensor:
    """Gather a weight in at least fp32; a collective."""
    if isinstance(weight, QuantizedWeight):
        return weight.dense_whole()
    return _at_least_fp32(whole_of(weight))


def replace_base(weight: Base, merged: Tensor) -> Tensor:
    """Replace the values of a weight.

    Returns:
        the new values after rounding or quantization.
    """
    if isinstance(weight, QuantizedWeight):
        weight.put(merged, again=True)
        return weight.dense_whole()
    put(weight, merged)
    return merged.to(weight.dtype).to(merged.dtype)


def full_update(adapter: LowRank, params: Mapping[str, nn.Parameter]) -> Tensor:
    """Gather the update of an adapter in at least fp32; a collective."""
    return adapter.delta_of(
        _at_least_fp32(whole_of(params["a"])), _at_least_fp32(whole_of(params["b"]))
    )


def _at_least_fp32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


@torch.no_grad()
def merge_adapters(
    model: nn.Module,
    weights: OptimizerParams,
    optimizer: torch.optim.Optimizer,
    seed: int,
    step: int,
    optimizer_state: Literal["drop", "keep"] = "keep",
) -> None:
    """Merge adapters into the weights and reset them, without changing the function.

    W becomes W + scale * B A, multiplied by m / |W + scale * B A| row by row if there is a
    magnitude m. A is reinitialized, with a generator seeded by the seed, its name and the step; B
    becomes zero, and a magnitude becomes the norm of the merged rows. All ranks that have a part of
    a weight must call it; one weight at a time is gathered.

    Arguments:
        optimizer_state: see `adapter.merge.optimizer_state`.
    """
    rules = adapter_rules(model, after_merge=True)
    masters = dict(weights.named_parameters())
    for path, (adapter, weight, params) in adapters_with_weights(model).items():
        # The optimizer's weights, which may be more exact than the model's.
        exact = {name: masters.get(f"{path}.{name}", param) for name, param in params.items()}
        merged = full_base(weight) + full_update(adapter, exact)
        if "magnitude" in exact:
            lengths = torch.linalg.vector_norm(merged, dim=adapter.row_dim)
            factor = whole_of(exact["magnitude"]) / lengths
            merged = merged * factor.unsqueeze(adapter.row_dim)
        rounded = replace_base(weight, merged)
        for name in ("a", "b"):
            # A different name for each merge, which seeds the draw.
            drawn = f"{path}.{name}@{step}"
            fill_by({drawn: exact[name]}, {drawn: rules[f"{path}.{name}"]}, seed)
        if "magnitude" in exact:
            # Norms of the rounded weights, so that the factor is 1.
            put(exact["magnitude"], torch.linalg.vector_norm(rounded, dim=adapter.row_dim))
    weights.master_to_params()
    if optimizer_state == "drop":
        for name, param in weights.named_parameters():
            if f".{CHILD}." in name:
                optimizer.state.pop(param, None)
