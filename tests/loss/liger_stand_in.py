"""What stands for liger-kernel where there is no GPU: its function's contract in plain torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F


def liger_fused_linear_cross_entropy(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ce_weight: Tensor | None = None,
    ignore_index: int = -100,
    lse_square_scale: float = 0.0,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    softcap: float | None = None,
    return_z_loss: bool = False,
) -> Any:
    """Names, defaults and results as in liger-kernel 0.8.5; the loss holds the z-loss as well."""
    logits = F.linear(input, weight, bias).float()
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    loss = F.cross_entropy(
        logits,
        target,
        ce_weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
    squares = logits.logsumexp(-1).square() * (target != ignore_index)
    z_loss = lse_square_scale * squares.sum()
    if not return_z_loss:
        return loss + z_loss
    return SimpleNamespace(loss=loss + z_loss, z_loss=z_loss.detach())


@contextmanager
def liger_stand_in() -> Iterator[None]:
    """Make liger-kernel and a GPU look as if they were there."""
    package, below = ModuleType("liger_kernel"), ModuleType("liger_kernel.transformers")
    functional: Any = ModuleType("liger_kernel.transformers.functional")
    functional.liger_fused_linear_cross_entropy = liger_fused_linear_cross_entropy
    with pytest.MonkeyPatch.context() as patch:
        for module in (package, below, functional):
            patch.setitem(sys.modules, module.__name__, module)
        patch.setattr("setpoint.loss.fused.liger_missing", lambda: None)
        yield
