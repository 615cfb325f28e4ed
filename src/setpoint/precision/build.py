"""From the section to what it asks for, in the order in which a model goes through it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from setpoint.precision.scaler import LossScaler
from setpoint.precision.weights import MasterWeights, OptimizerParams, cast_parameters
from setpoint.shapes.outcome import supports_head
from setpoint.shapes.placed import ShardDtypes, ShardedWeight
from setpoint.shapes.protocols import Adapted, HasProducts
from setpoint.units.dtype import DType

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    from setpoint.precision.config import Precision


def store_in(
    config: Precision, model: nn.Module, sharded: Collection[Tensor] = ()
) -> dict[str, Tensor]:
    """Store a model's parameters in the format of the section.

    Arguments:
        model: with its first weights, in fp32; it is changed in place.
        sharded: parameters that FSDP2 shards; those that are trained stay the masters, if any.

    Returns:
        the weights that become masters beside those of the model, by name.
    """
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if config.master is None:
        trained = {}
    kept = {id(weight) for weight in sharded} & {id(weight) for weight in trained.values()}
    # No copies: the model gets new memory, and this is what it had before.
    full = {name: weight.detach() for name, weight in trained.items() if id(weight) not in kept}
    cast_parameters(model, DType(config.params).torch(), kept)
    return full


def build_weights(
    config: Precision, model: nn.Module, full: dict[str, Tensor], is_sharded: bool = False
) -> OptimizerParams:
    """Make what the optimizer is built over.

    Arguments:
        is_sharded: whether FSDP2 shards weights.
        full: what `store_in` returned; it is emptied, so that what is copied is not held twice.
    """
    reduce = _dtype(config.reduce)
    if is_sharded and config.params == "fp32":
        reduce = None  # of messages alone: FSDP2 gives gradients in the dtype of its shards
    if config.master is None:
        return OptimizerParams(model, reduce)
    weights = MasterWeights(model, full, reduce, DType(config.params).torch())
    full.clear()
    return weights


def state_dtype(config: Precision) -> torch.dtype | None:
    """The dtype that the optimizer keeps its state in, as it is asked to.

    Returns:
        the format; None: that of the weights it updates.
    """
    return _dtype(config.optimizer_state)


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

    Autocast stays what computes in another dtype: nothing that modules hand on is cast, and
    `shard_dtypes` says which weights are. Gradients are reduced in the dtype of the section.
    """
    # Imported here: it takes a good part of a second, and one process needs none of it.
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return MixedPrecisionPolicy(reduce_dtype=_dtype(config.reduce), cast_forward_inputs=False)


def shard_dtypes(config: Precision, model: nn.Module) -> Callable[[ShardedWeight], ShardDtypes]:
    """Make what chooses the dtypes of the weights of a model that FSDP2 shards.

    A whole weight has the dtype, and its gradient adds up in the dtype, that they have on one rank;
    but those that products alone read are cast before they are gathered, not by autocast.
    """
    products = _product_weights(model)
    params, of_products = (
        DType(name).torch() for name in (config.params, config.gathered(is_sharded=True))
    )
    grad = _dtype(config.reduce) or params

    def choose(weight: ShardedWeight) -> ShardDtypes:
        shard = weight.shard
        gathered = of_products if products.issuperset(weight.modules) else params
        if not shard.requires_grad and shard.dtype != params:
            gathered = shard.dtype  # scales of quantized weights
        return ShardDtypes(gathered, grad, torch.promote_types(shard.dtype, grad))

    return choose


def _dtype(name: str | None) -> torch.dtype | None:
    return None if name is None else DType(name).torch()


def build_scaler(config: Precision, device: torch.device) -> LossScaler:
    """Make what scales the loss.

    Returns:
        the scaler, which does nothing unless fp16 is computed in.
    """
    return LossScaler(device.type, config.loss_scale, enabled=config.compute == "fp16")


def _product_weights(model: nn.Module) -> set[tuple[nn.Module, str]]:
    """Find the parameters that are read by matrix products alone.

    Those of linear layers, and of modules that say so. A model that autocast does not compute in
    (`torch.autocast(enabled=False)`) reads the weights of its linear layers otherwise.

    Returns:
        modules, and names of their own parameters.
    """
    products: set[tuple[nn.Module, str]] = set()
    for module in model.modules():
        if isinstance(module, HasProducts):
            products |= {(module, name) for name in module.product_weights()}
        elif isinstance(module, nn.Linear):
            products |= {(module, name) for name in ("weight", "bias")}
    # The loss adds an adapter's update to the output matrix before it multiplies.
    outputs = [getattr(m, "output", None) for m in model.modules() if supports_head(m)]
    adapted = [m for m in outputs if isinstance(m, nn.Module) and isinstance(m, Adapted)]
    return {(module, name) for module, name in products if module not in adapted}
