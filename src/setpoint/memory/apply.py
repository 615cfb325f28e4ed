"""From the section to what it asks for, in the order in which a model goes through it."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer

from setpoint.memory.host import offload_for
from setpoint.memory.optimizer_offload import offload_optimizer
from setpoint.memory.saved import SavedTensors, Stays

if TYPE_CHECKING:
    from setpoint.memory.checkpointing import Layers
    from setpoint.memory.config import ActivationOffload, Memory


def save_activations(
    config: Memory, model: nn.Module, layers: Layers, device: torch.device
) -> None:
    """Make a model keep less for its backward pass, or keep it elsewhere.

    Losses and gradients stay what they were, to the last bit.

    Arguments:
        model: on its device, and not compiled yet; changed in place.

    Raises:
        SetpointError: the model has no layers, or not the parts that are named.
    """
    if config.activation_checkpointing is not None:
        config.activation_checkpointing.build(layers=layers)
    if config.activation_offload is not None:
        offload_activations(config.activation_offload, model, device)


def save_state(config: Memory, optimizer: Optimizer, device: torch.device) -> None:
    """Make an optimizer keep its state elsewhere.

    Arguments:
        optimizer: before its first step; changed in place.
    """
    if config.optimizer_offload is not None:
        offload_optimizer(config.optimizer_offload, optimizer, device)


def offload_activations(config: ActivationOffload, model: nn.Module, device: torch.device) -> None:
    """Make a model keep what its backward pass needs on the host, as far as it exceeds a limit.

    Parameters and buffers stay, and so does what a head keeps, such as logits: the backward pass
    begins with it. What travels comes back bit by bit as it was.

    Arguments:
        model: changed in place; the names of its parameters stay.
    """
    saved = SavedTensors(offload_for(device), device, int(config.limit), int(config.smallest))
    model.forward = partial(_run, saved, model, model.forward)


def _run(saved: SavedTensors, model: nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    if kwargs.get("head") is not None:
        kwargs["head"] = partial(_here, kwargs["head"])
    saved.start(chain(model.parameters(), model.buffers()))
    with saved_tensors_hooks(saved.pack, saved.unpack):
        return forward(*args, **kwargs)


def _here(head: Any, *args: Any) -> Any:
    with saved_tensors_hooks(Stays, Stays.get):
        return head(*args)
