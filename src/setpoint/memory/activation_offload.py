"""Activations that wait for the backward pass in the host's memory."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from setpoint.memory.host import offload_for
from setpoint.memory.saved import SavedTensors, Stays

if TYPE_CHECKING:
    from setpoint.memory.config import ActivationOffload


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
