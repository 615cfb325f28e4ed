"""Inspection of models: layers, parameters with their kinds, and training mode."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from setpoint.shapes.parameter import Kind
from setpoint.shapes.protocols import KnowsKinds

_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, _NormBase)
# `LlamaRMSNorm`, `BatchNorm1d`, `RMSNormGated`; not `NormalizedLinear`.
_NORM = re.compile(r"Norm(?![a-z])")
_ROUTER = re.compile(r"Router(?![a-z])")
_BIAS = re.compile(r"bias$|(^|_)bias_")
_OUTPUTS = ("output", "lm_head", "embed_out", "unembed", "unembedding")
_GATES = ("gate", "router", "shared_gate", "shared_expert_gate")


def layers_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Find the repeated blocks of a model, such as the layers of a transformer.

    These are the members of the list or dictionary of modules with the most parameters, because
    lists of experts or heads are within a layer. A sequence qualifies if its members have one
    class; dictionaries that contain such a list, and lists of embeddings, do not.

    Returns:
        qualified names and modules, in order and each once; empty if nothing repeats.
    """
    best, most = [], 0
    for prefix, holder in model.named_modules():
        layers = _members(prefix, holder)
        # The first wins: nothing inside it can have more.
        size = sum(p.numel() for p in holder.parameters()) if layers else 0
        if size > most:
            best, most = layers, size
    return best


def _members(prefix: str, holder: nn.Module) -> list[tuple[str, nn.Module]]:
    """Named members of a holder of layers; empty for other modules."""
    members = list(holder.named_children())
    if not members or any(_is_no_layer(module) for _, module in members):
        return []
    if isinstance(holder, nn.Sequential):
        if len(members) < 2 or len({type(module) for _, module in members}) > 1:
            return []
    elif not isinstance(holder, nn.ModuleList | nn.ModuleDict):
        return []
    return [(f"{prefix}.{name}" if prefix else name, module) for name, module in members]


def _is_no_layer(module: nn.Module) -> bool:
    if isinstance(module, nn.Embedding):
        return True
    # A list cannot be called; a subclass with a forward pass can.
    is_list = isinstance(module, nn.ModuleList | nn.ModuleDict)
    return is_list and type(module).forward is nn.Module.forward


def count_parameters(module: nn.Module) -> int:
    """Count the elements of all parameters: shared ones once, sharded ones in full."""
    return sum(parameter.numel() for parameter in module.parameters())


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and restore each module's mode afterwards."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def parameter_kinds(model: nn.Module) -> dict[str, Kind]:
    """Classify each parameter of a model, which may be on the meta device.

    The kind follows from the module or, for classes from neither PyTorch nor Setpoint, from names.
    The weight of an `nn.Embedding` is an embedding, even if it is also the output matrix. All
    parameters of a norm are of kind norm. The output is `get_output_embeddings()`, or a linear
    layer at the top level with such a name. A router is a module with such a name, or a gate next
    to experts.
    """
    outputs = {id(weight) for weight in _output_weights(model)}
    owners = dict(model.named_modules())
    kinds: dict[str, Kind] = {}
    for name, parameter in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        module = owners[path]
        if isinstance(module, KnowsKinds):
            kinds[name] = module.parameter_kinds()[leaf]
        elif _is_norm(module, parameter.ndim):
            kinds[name] = "norm"
        elif _BIAS.search(leaf):
            kinds[name] = "bias"
        elif isinstance(module, nn.Embedding):
            kinds[name] = "embedding"
        elif id(parameter) in outputs and parameter.ndim >= 2:
            kinds[name] = "output"
        elif _is_router(owners, path):
            kinds[name] = "router"
        else:  # of a convolution, or a user's experts, it is unknown which dimensions are matrices
            kinds[name] = ("vector", "vector", "matrix", "tensor")[min(parameter.ndim, 3)]
    return kinds


def inputs_first(model: nn.Module) -> set[str]:
    """Names of (inputs, outputs) matrices, which transformers' `Conv1D` has (GPT-2)."""
    return {
        f"{path}.weight" if path else "weight"
        for path, module in model.named_modules()
        if any(
            cls.__name__ == "Conv1D" and cls.__module__.startswith("transformers.")
            for cls in type(module).__mro__
        )
    }


def packed_experts(model: nn.Module) -> dict[str, Literal["inputs_first", "outputs_first"]]:
    """Packed experts of transformers models: the order of their matrices, by name."""
    orders: dict[str, Literal["inputs_first", "outputs_first"]] = {}
    for path, module in model.named_modules():
        # An attribute of transformers' experts, except Llama 4's.
        transposed = getattr(module, "is_transposed", None)
        if type(module).__name__ == "Llama4TextExperts":
            transposed = True
        elif not isinstance(getattr(module, "_is_expert_parallel", None), bool):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim == 3:
                orders[f"{path}.{name}"] = "inputs_first" if transposed else "outputs_first"
    return orders


def _is_norm(module: nn.Module, dims: int) -> bool:
    if isinstance(module, _NORMS):
        return True
    title = type(module).__name__
    # A linear layer with a fixed weight norm has the word in its name as well.
    return title.endswith("Norm") or (dims < 2 and _NORM.search(title) is not None)


def _is_router(owners: dict[str, nn.Module], path: str) -> bool:
    parent, _, leaf = path.rpartition(".")
    if not path:
        return False
    if any(_ROUTER.search(kind.__name__) for kind in type(owners[path]).__mro__):
        return True
    # Some routers are modules with a linear layer inside.
    if parent and _ROUTER.search(type(owners[parent]).__name__):
        return True
    return leaf in _GATES and hasattr(owners[parent], "experts")


def _output_weights(model: nn.Module) -> Iterator[Any]:
    """Weights of the output layer, of the model itself or of the one it wraps."""
    for module in (model, *model.children()):
        getter = getattr(module, "get_output_embeddings", None)
        try:
            head = getter() if callable(getter) else None
        except (AttributeError, RuntimeError):  # raised by models that have none
            head = None
        weight = _weight_of(head)
        if weight is not None:
            yield weight
            return
    for name in _OUTPUTS:
        head = getattr(model, name, None)
        if isinstance(head, nn.Linear):
            yield _weight_of(head)


def _weight_of(module: Any) -> nn.Parameter | None:
    """The parameter itself, since the attribute may be its local shard."""
    parameters = module.named_parameters(recurse=False) if isinstance(module, nn.Module) else ()
    return dict(parameters).get("weight")
