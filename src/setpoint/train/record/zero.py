"""What a checkpoint keeps of a run that DeepSpeed trains, in the files of all other runs."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from setpoint.checkpoint.optimizer_state import capture_optimizer, saved_states
from setpoint.checkpoint.weights import refuse_misfits
from setpoint.config import SetpointError
from setpoint.parallel.zero import ZeroReplicas
from setpoint.shapes.placed import Placeable, in_memory

if TYPE_CHECKING:
    from setpoint.checkpoint.loading import Checkpoint
    from setpoint.train.build.components import Components


def capture_weights(zero: ZeroReplicas) -> dict[str, Tensor]:
    """Take this rank's share of the weights: whole ones, gathered one after the other."""
    world = zero.world
    return {
        name: held.to("cpu", copy=True)
        for number, (name, held) in enumerate(zero.tensors())
        if number % world.size == world.rank
    }


def restore_weights(zero: ZeroReplicas, saved: Checkpoint) -> None:
    """Give the model and the optimizer the most exact weights of a checkpoint.

    Raises:
        RunError: if a tensor is missing, surplus, or of another shape, each named.
    """
    newest = {**saved.tensors["model"], **saved.tensors.get("master", {})}
    own: dict[str, Tensor] = zero.whole.state_dict(keep_vars=True)
    if saved.partial:
        own = {name: held for name, held in own.items() if name in newest}
    shapes = {name: zero.shape_of(held) for name, held in own.items()}
    refuse_misfits(saved.path, shapes, newest)
    for name, held in own.items():
        zero.load(held, in_memory(newest[name]))


def capture_state(
    zero: ZeroReplicas, parts: Components
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Take this rank's share of the optimizer's state, and what is no tensor on all ranks.

    Returns:
        see `capture_optimizer`.
    """
    world, number = zero.world, count()

    def kept(value: Any) -> Any:
        """A tensor if this rank is to write it, else its outline."""
        if not isinstance(value, Tensor):
            return value
        own = next(number) % world.size == world.rank
        return value.to("cpu", copy=True) if own else torch.empty_like(value, device="meta")

    states = {
        weight: {key: kept(value) for key, value in state.items()}
        for weight, state in zero.states()
    }
    named = parts.weights.named_parameters()
    tensors, state = capture_optimizer(zero.twin(states), named, parts.options)
    return {name: each for name, each in tensors.items() if not each.is_meta}, state


def restore_state(
    zero: ZeroReplicas, parts: Components, saved: Checkpoint, partial: bool = False
) -> None:
    """Give the optimizer the state of a checkpoint; its options are those of the configuration.

    Arguments:
        partial: whether other parameters may be trained; all that are have state, or none.

    Raises:
        SetpointError: the checkpoint is of another optimizer, or one that has updated some weights
            more often than others.
    """
    state = saved.state.get("optimizer")
    if state is None and saved.partial:
        return
    assert state is not None
    named = dict(parts.weights.named_parameters())
    files = saved.tensors["optimizer"]
    states = saved_states(zero.twin({}), named.items(), files, state, partial)
    trained = {name: zero.shape_of(held) for name, held in named.items() if held.requires_grad}
    counts = {
        str([_plain(each) for each in states[name].values() if not _is_of(each, shape)])
        for name, shape in trained.items()
        if name in states
    }
    if states and (len(states) < len(trained) or len(counts) > 1):
        raise SetpointError(
            f"parallel.engine = deepspeed: {saved.path} has updated some weights more often "
            f"than others, and DeepSpeed updates all of them together\nValid: torch"
        )
    for name, kept in states.items():
        zero.restore(named[name], kept)


def _is_of(value: Any, shape: torch.Size) -> bool:
    return isinstance(value, Tensor | Placeable) and value.shape == shape


def _plain(value: Any) -> Any:
    value = in_memory(value)
    return value.tolist() if isinstance(value, Tensor) else value
