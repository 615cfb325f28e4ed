"""Quantizing the weights of a model, and making them dense again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from setpoint.adapter.quantize.weight import (
    QuantizedWeight,
    StepNoise,
    quantize_experts,
    quantize_module,
)
from setpoint.shapes.stored import CHILD, HasCoded

if TYPE_CHECKING:
    from setpoint.adapter.plan import Site
    from setpoint.adapter.quantize.config import Quantization


def quantize_base(
    config: Quantization, model: nn.Module, sites: Iterable[Site], seed: int
) -> StepNoise | None:
    """Replace weights of a model by quantized ones.

    Arguments:
        model: on the meta device, where the parts have no values yet, or with its weights: these
            are quantized one after the other, and each is freed before the next.
        sites: linear layers and packed experts.
        seed: of noise.

    Returns:
        the noise, which the training loop tells its steps; None without.
    """
    noise = None if config.noise is None else StepNoise(config.noise, seed)
    for site in sites:
        holder = model.get_submodule(site.holder)
        coded = model.coded(site.weight) if isinstance(model, HasCoded) else None
        if site.form == "experts":
            turned = site.outputs_first
            quantize_experts(config, holder, site.path, noise, coded, outputs_first=turned)
        else:
            quantize_module(config, holder, site.path, noise, coded)
    return noise


def noise_of(model: nn.Module) -> StepNoise | None:
    """Find the noise of quantized weights; None where there is none."""
    held = (m.noise for m in model.modules() if isinstance(m, QuantizedWeight))
    return next((each for each in held if each is not None), None)


@torch.no_grad()
def make_dense(
    layer: nn.Module, weight: Tensor | None = None, dtype: torch.dtype = torch.float32
) -> None:
    """Give a layer a dense weight again, or experts dense ones, which are frozen.

    Arguments:
        layer: whole, on one rank, without an adapter; one that is not quantized stays as it is.
        weight: of a linear layer; None: what the quantized one stands for.
        dtype: of that.
    """
    held = layer._modules.get(CHILD)
    if isinstance(held, QuantizedWeight):
        weight = held.dense(dtype) if weight is None else weight
        del layer._modules[CHILD]
        layer.__class__ = type(layer).__bases__[1]  # the class that it had before
        layer.register_parameter("weight", nn.Parameter(weight, requires_grad=False))
    elif isinstance(held, nn.ModuleDict):
        for name, each in held.items():
            assert isinstance(each, QuantizedWeight)
            dense = nn.Parameter(each.dense(dtype).contiguous(), requires_grad=False)
            layer.register_parameter(name, dense)
        setattr(layer, CHILD, None)
