"""AdamW, in PyTorch's fused form where there is one."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from setpoint.optim.groups import Named, decay_groups

if TYPE_CHECKING:
    from setpoint.optim.config import AdamW

# The devices with a fused kernel that torch ships (2.11 to 2.13); others are plug-ins.
_FUSED_DEVICES = frozenset({"cpu", "cuda", "mps", "xpu"})


def build_adamw(config: "AdamW", parameters: Iterable[Named]) -> torch.optim.AdamW:
    """Make the optimizer of an `adamw` section (Loshchilov and Hutter, 2019).

    Arguments:
        config: the resolved section.
        parameters: (qualified name, parameter) pairs, as from `module.named_parameters()`.

    Returns:
        An optimizer at its start; its groups carry `name` and `param_names`.

    Raises:
        SetpointError: nothing is trainable.
    """
    groups = decay_groups(parameters, config.weight_decay)
    tensors = [tensor for group in groups for _, tensor in group["params"]]
    # None leaves the choice among the other implementations to torch, which itself would only
    # refuse `fused` at the first step.
    fused = all(t.device.type in _FUSED_DEVICES and t.is_floating_point() for t in tensors) or None
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=fused)
