"""Stochastic gradient descent, PyTorch's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from setpoint.config import SetpointError
from setpoint.optim import uncompiled
from setpoint.optim.given import Given, given_groups, given_tensors
from setpoint.optim.implementation import implementation_flags

if TYPE_CHECKING:
    from setpoint.optim.config import SGD


def build_sgd(config: SGD, parameters: Given) -> torch.optim.SGD:
    """Make the optimizer of an `sgd` section (Sutskever et al., 2013).

    Arguments:
        parameters: groups, as from `parameter_groups`, or (qualified name, parameter) pairs, all
            of which decay.

    Raises:
        SetpointError: the fused kernel is demanded where there is none that works.
    """
    groups = given_groups(parameters)
    tensors = list(given_tensors(groups))
    fused, foreach = implementation_flags(config.implementation, tensors)
    if fused and any(tensor.device.type == "cpu" and tensor.itemsize < 4 for tensor in tensors):
        # In torch 2.11 to 2.13 it leaves all but the last few elements as they are, silently.
        if config.implementation == "fused":
            raise SetpointError(
                "optimizer.implementation = fused: PyTorch's fused SGD does not update bf16 "
                "weights on a CPU\nValid: auto, foreach or loop"
            )
        fused = None
    return uncompiled.SGD(
        groups,
        lr=config.lr,
        momentum=config.momentum,
        dampening=config.dampening,
        nesterov=config.nesterov,
        weight_decay=config.weight_decay,
        fused=fused,
        foreach=foreach,
    )
