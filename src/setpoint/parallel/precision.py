"""The compute format as a context."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from setpoint.config.dtype import DType


def compute_in(name: str, device: torch.device) -> AbstractContextManager[object]:
    """Compute matrix products in a format; parameters and gradients keep their own.

    Arguments:
        name: `"fp32"`, `"bf16"` or `"fp16"`.
        device: where the tensors lie.

    Returns:
        a context for the forward pass.
    """
    if name == "fp32":
        return nullcontext()
    return torch.autocast(device.type, DType(name).torch())
