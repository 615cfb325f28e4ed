"""From the section to what it asks for, in the order in which a model goes through it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.optim import Optimizer

from setpoint.memory.activation_offload import offload_activations
from setpoint.memory.optimizer_offload import offload_optimizer

if TYPE_CHECKING:
    from setpoint.memory.checkpointing import Layers
    from setpoint.memory.config import Memory


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
