"""AdamW, in PyTorch's fused form where there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from setpoint.optim import uncompiled
from setpoint.optim.given import Given, given_groups, given_tensors
from setpoint.optim.implementation import implementation_flags

if TYPE_CHECKING:
    from setpoint.optim.config import AdamW


def build_adamw(config: AdamW, parameters: Given) -> torch.optim.AdamW:
    """Make the optimizer of an `adamw` section (Loshchilov and Hutter, 2019).

    Arguments:
        parameters: groups, as from `parameter_groups`, or (qualified name, parameter) pairs, all
            of which decay.

    Raises:
        SetpointError: the fused kernel is demanded where there is none.
    """
    groups = given_groups(parameters)
    fused, foreach = implementation_flags(config.implementation, given_tensors(groups))
    return uncompiled.AdamW(
        groups,
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        amsgrad=config.amsgrad,
        fused=fused,
        foreach=foreach,
    )
