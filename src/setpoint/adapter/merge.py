"""The weight of a module with its adapter folded in."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from setpoint.adapter.low_rank import EmbeddingAdapter, ExpertAdapter, LinearAdapter, LowRank
from setpoint.adapter.plan import CHILD
from setpoint.adapter.quantize.apply import make_dense
from setpoint.config import SetpointError
from setpoint.shapes.placed import part_here
from setpoint.shapes.stored import CHILD as QUANTIZED


class DenseExperts:
    """What stands before the class of experts of transformers with adapters or quantized tensors.

    These multiply with the tensors of all experts by themselves, so that they get dense ones, with
    the updates. What is quantized is dense in the forward pass, and again in the backward pass, of
    one layer at a time.
    """

    def forward(self, *args: Any, **named: Any) -> Any:
        """Compute with the dense weights."""
        if not (torch.is_grad_enabled() and _children(self, QUANTIZED)):
            return self._with_dense(*args, **named)
        return checkpoint(self._with_dense, *args, use_reentrant=False, **named)

    def _with_dense(self, *args: Any, **named: Any) -> Any:
        module: Any = self
        adapters, stored = _children(self, CHILD), _children(self, QUANTIZED)
        held = (each.dtype for each in module.parameters() if each.requires_grad)
        dtype = next(held, args[0].dtype)
        # Before the parameters of a module, attributes of its own are found.
        for name in dict.fromkeys((*stored, *adapters)):
            if name in adapters:
                weight = stored[name].dense() if name in stored else _own(module, name)
                merged = merged_weight(weight, adapters[name])
                module.__dict__[name] = merged.to(dtype) if name in stored else merged
            else:
                module.__dict__[name] = stored[name].dense(dtype)
        try:
            above: Any = super()
            return above.forward(*args, **named)
        finally:
            for name in dict.fromkeys((*stored, *adapters)):
                del module.__dict__[name]


def _own(module: nn.Module, name: str) -> Any:
    return part_here(cast(Any, module._parameters[name]))


def _children(module: Any, name: str) -> dict[str, Any]:
    return dict((module._modules.get(name) or nn.ModuleDict()).items())


def merged_weight(weight: Tensor, adapter: LowRank) -> Tensor:
    """Compute W + scale * B A; with a magnitude, each row of it with that length.

    It is computed in fp32 at least, and gradients reach the adapter through it, but for the lengths
    of the rows (DoRA, 4.3).

    Arguments:
        weight: the dense weight of the module, as the adapter's own parameters whole or this rank's
            part.

    Returns:
        a weight in the dtype of the module's.
    """
    wide = torch.promote_types(weight.dtype, torch.float32)
    merged = weight.to(wide) + adapter.delta()
    if adapter.magnitude is not None:
        # Of experts, ranks hold parts without readers of their own.
        is_packed = isinstance(adapter, ExpertAdapter)
        magnitude = part_here(adapter.magnitude) if is_packed else adapter.magnitude
        factor = magnitude / adapter.lengths(weight)
        merged = merged * factor.unsqueeze(adapter.row_dim)
    return merged.to(weight.dtype)


@torch.no_grad()
def merge_all(model: nn.Module) -> None:
    """Fold all adapters of a model into its weights, and take them out.

    Arguments:
        model: whole, on one rank; its modules are plain ones afterwards, and what was quantized is
            dense.

    Raises:
        SetpointError: weights are divided among ranks.
    """
    dtype = next(each.dtype for each in model.parameters() if each.is_floating_point())
    for module in list(model.modules()):
        for name, adapter in list(module.named_children()):
            if name != "adapter":
                continue
            if isinstance(adapter, LinearAdapter | EmbeddingAdapter):
                quantized = QUANTIZED in module._modules
                weight: Any = module.weight if quantized else _dense(module, "weight")
                merged = merged_weight(weight, adapter)
                del module._modules[name]
                # The class that it had before it was adapted, which stands behind the one of that.
                module.__class__ = type(module).__bases__[1]
                if quantized:
                    make_dense(module, merged.to(dtype))
                else:
                    weight.copy_(merged)
            elif adapter and all(isinstance(each, ExpertAdapter) for each in adapter.children()):
                make_dense(module, dtype=dtype)
                for own, each in adapter.named_children():
                    weight = _dense(module, own)
                    assert isinstance(each, ExpertAdapter)
                    weight.copy_(merged_weight(weight, each))
                if isinstance(module, DenseExperts):
                    del module._modules[name]
                else:
                    module.adapter = None  # type: ignore[assignment]
    for module in list(model.modules()):
        make_dense(module, dtype=dtype)
        if isinstance(module, DenseExperts):
            module._modules.pop(QUANTIZED, None)
            module.__class__ = type(module).__bases__[1]


def _dense(module: nn.Module, name: str) -> Tensor:
    # Not by its name, by which some modules give what they compute with.
    weight: Any = module._parameters[name]
    if hasattr(weight, "placements"):
        raise SetpointError("adapters of divided weights are merged when they have been gathered")
    return weight
