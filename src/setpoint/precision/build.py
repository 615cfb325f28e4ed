"""From the section to what it asks for, in the order in which a model goes through it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from setpoint.precision.scaler import LossScaler
from setpoint.precision.weights import MasterWeights, OptimizerParams, cast_parameters
from setpoint.units.dtype import DType

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    from setpoint.precision.config import Precision


def store_in(config: Precision, model: nn.Module) -> dict[str, Tensor]:
    """Store a model's parameters in the format of the section.

    Arguments:
        model: with its first weights, in fp32; it is changed in place.
    """
    full: dict[str, Tensor] = {}
    if config.master is not None:
        # No copies: the model gets new memory, and this is what it had before.
        full = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    cast_parameters(model, DType(config.params).torch())
    return full


def build_weights(config: Precision, model: nn.Module, full: dict[str, Tensor]) -> OptimizerParams:
    """Make what the optimizer is built over.

    Arguments:
        full: what `store_in` returned; it is emptied, so that what is copied is not held twice.
    """
    reduce = None if config.reduce is None else DType(config.reduce).torch()
    if any(hasattr(module, "set_requires_gradient_sync") for module in model.modules()):
        # FSDP2 adds up in the dtype of its policy, and gives gradients in that of the shards.
        reduce = None
    if config.master is None:
        return OptimizerParams(model, reduce)
    weights = MasterWeights(model, full, reduce)
    full.clear()
    return weights


def state_dtype(config: Precision) -> torch.dtype | None:
    """The dtype that the optimizer keeps its state in, as it is asked to.

    Returns:
        the format; None: that of the weights it updates.
    """
    return None if config.optimizer_state is None else DType(config.optimizer_state).torch()


def convert_state(
    config: Precision,
    optimizer: torch.optim.Optimizer,
    others: Mapping[Tensor, torch.dtype] | None = None,
) -> None:
    """Bring the state of an optimizer into the configured formats, where a checkpoint had others.

    Arguments:
        optimizer: with the state of a checkpoint; counts of steps stay as they are.
        others: for an optimizer whose formats are its own business, not Setpoint's: the format of
            each weight in the checkpoint. Only state of a weight's shape and format follows it.
    """
    wanted = state_dtype(config)
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if not isinstance(value, Tensor) or not value.ndim or not value.is_floating_point():
                continue
            if others is not None and (
                value.shape != parameter.shape or value.dtype != others[parameter]
            ):
                continue
            state[name] = value.to(wanted or parameter.dtype)


def sharding_policy(config: Precision) -> MixedPrecisionPolicy:
    """What FSDP2 is given, so that sharded weights compute as whole ones do.

    Autocast stays what computes in another dtype: weights are gathered as they are stored, and
    nothing that modules hand on is cast. Gradients are reduced in the dtype of the section.

    Where these are wider than the shards, they are rounded when they have been reduced, so that
    micro-batches must not be added up then.
    """
    # Imported here: it takes a good part of a second, and one process needs none of it.
    from torch.distributed.fsdp import MixedPrecisionPolicy

    reduce = None if config.reduce is None else DType(config.reduce).torch()
    return MixedPrecisionPolicy(reduce_dtype=reduce, cast_forward_inputs=False)


def build_scaler(config: Precision, device: torch.device) -> LossScaler:
    """Make what scales the loss.

    Returns:
        the scaler, which does nothing unless fp16 is computed in.
    """
    return LossScaler(device.type, config.loss_scale, enabled=config.compute == "fp16")
