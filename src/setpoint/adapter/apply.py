"""Putting an adapter beneath the modules of a model, which keep their names and their weights."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from setpoint.adapter.config import AdapterConfig
from setpoint.adapter.low_rank import (
    EmbeddingAdapter,
    ExpertAdapter,
    ExpertAdapters,
    LinearAdapter,
    LowRank,
)
from setpoint.adapter.merge import DenseExperts, merged_weight
from setpoint.adapter.plan import (
    CHILD,
    Described,
    Target,
    adapter_problems,
    describe,
    quantized_sites,
    sites_of,
)
from setpoint.adapter.quantize.apply import quantize_base
from setpoint.config import SetpointError
from setpoint.shapes.parameter import Parameter
from setpoint.shapes.stored import CHILD as QUANTIZED


def adapt(
    config: AdapterConfig,
    model: nn.Module,
    parameters: Sequence[Parameter],
    fused: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
) -> Described:
    """Add an adapter to a model, whose weights may be quantized, and freeze what is not trained.

    The adapter's parameters hang beneath the modules that they change, as
    `layers.0.attention.query.adapter.a`. They have no values yet: see `LowRank.spreads`, and
    `start_magnitudes` for their lengths. It must happen before a model is divided among ranks, so
    that A and B are divided as the weights that they belong to.

    Arguments:
        model: the base; on the meta device, too.
        parameters: what the model would train.
        fused: outputs of the projections that are fused in a module, by its name.
        seed: of the noise of quantized weights.

    Raises:
        SetpointError: the section does not fit the model, or it has an adapter already.
    """
    modules = {name: module for name, module in model.named_modules() if name}
    for problem in adapter_problems(config, parameters, fused, list(modules)):
        valid = f"\nValid: {', '.join(problem.valid)}" if problem.valid else ""
        raise SetpointError(
            f"adapter.{problem.path} {problem.message}{valid} {problem.hint}".strip()
        )
    described = describe(config, parameters, fused)
    quantized = quantized_sites(config, sites_of(parameters))
    if config.quantize is not None:
        quantize_base(config.quantize, model, quantized, seed)
    for site in (*quantized, *(target.site for target in described.targets)):
        if site.kind == "tensor" and not isinstance(modules[site.holder], DenseExperts):
            holder = modules[site.holder]
            holder.__class__ = _class_of(type(holder), DenseExperts)
    owners: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        for weight in module.parameters(recurse=False):
            owners.setdefault(id(weight), []).append(name)
    for target in described.targets:
        holder = modules[target.site.holder]
        _require_form(target, holder)
        own = holder._parameters.get(target.site.weight.rpartition(".")[2])
        shared = owners.get(id(own), ())
        if len(shared) > 1:
            raise SetpointError(
                f"adapter.targets: {' and '.join(shared)} have one weight, and an adapter of one "
                f"of them would not be one of the other once it is merged\nValid: leave it out by "
                f"adapter.exclude, or do not tie them"
            )
        _adapt_one(config, target, holder)
    freeze_base(config, model)
    return described


def freeze_base(config: AdapterConfig, model: nn.Module) -> None:
    """Freeze all parameters but those of the adapter and those that are trained whole."""
    held = set(adapter_parameters(model))
    for name, parameter in model.named_parameters():
        if name not in held and not any(re.search(each, name) for each in config.train):
            parameter.requires_grad_(False)


def adapter_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of the adapters of a model, by their names in it."""
    return {
        f"{path}.{name}": parameter
        for path, module in model.named_modules()
        if isinstance(module, LowRank)
        for name, parameter in module.named_parameters(recurse=False)
    }


def _require_form(target: Target, holder: nn.Module) -> None:
    fits = {
        "linear": isinstance(holder, nn.Linear) or target.site.inputs_first,
        "embedding": isinstance(holder, nn.Embedding),
        "experts": hasattr(holder, CHILD) or target.site.kind == "tensor",
    }
    if CHILD in holder._modules and target.site.form != "experts":
        raise SetpointError(f"adapter: {target.site.path} has an adapter already")
    if not fits[target.site.form]:
        raise SetpointError(
            f"adapter.targets: {target.site.path} is a {type(holder).__name__}, which is no linear "
            f"layer, embedding or packed experts of Setpoint\nValid: leave it out by "
            f"adapter.exclude"
        )


def _adapt_one(config: AdapterConfig, target: Target, holder: nn.Module) -> None:
    own = target.site.path.rpartition(".")[2]
    given = (target, config.dropout, config.b_std)
    if target.site.form == "experts":
        adapters: Any = getattr(holder, CHILD, None)
        if adapters is None:
            adapters = ExpertAdapters()
            setattr(holder, CHILD, adapters)
        like: Any = holder._parameters[own]
        if like is None:  # which is quantized
            part: Any = next(holder.get_submodule(f"{QUANTIZED}.{own}").parameters())
            like = torch.empty(0, device=part.device)
        adapters[own] = ExpertAdapter(*given, like)
        return
    weight: Any = holder.weight
    is_linear = target.site.form == "linear"
    holder.add_module(CHILD, (LinearAdapter if is_linear else EmbeddingAdapter)(*given, weight))
    holder.__class__ = _class_of(type(holder), _AdaptedLinear if is_linear else _AdaptedEmbedding)


@cache
def _class_of(cls: type[nn.Module], behaves: type) -> type:
    """A class of modules with an adapter: one for all of a kind, as compilers tell them apart."""
    return type(cls.__name__, (behaves, cls), {"__module__": cls.__module__})


class _Adapted:
    """What stands before the class of an adapted module."""

    weight: Tensor
    adapter: Any
    forward: Any

    def adapted_weight(self) -> Tensor:
        """See `setpoint.shapes.protocols.Adapted`."""
        return merged_weight(self.weight, self.adapter)


class _AdaptedLinear(_Adapted):
    bias: Tensor | None

    def product_weights(self) -> tuple[str, ...]:
        """See `setpoint.shapes.placed.HasProducts`."""
        return ("weight", "bias") if self.adapter.magnitude is None else ()

    def forward(self, x: Tensor, *within: Any) -> Any:
        if within:  # what computes with `adapted_weight`
            return super().forward(x, *within)
        # A quantized weight is made dense when it is read.
        weight = None if self.adapter.magnitude is None else self.weight
        return self.adapter(x, super().forward(x), weight, self.bias)


class _AdaptedEmbedding(_Adapted):
    def forward(self, tokens: Tensor) -> Tensor:
        return self.adapter(tokens, super().forward(tokens), self.weight)
