"""The compute format as a context."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from setpoint.units.dtype import DType


def compute_in(compute: str, stored: str, device: torch.device) -> AbstractContextManager[object]:
    """Compute matrix products in a format; weights and gradients keep their own.

    Autocast converts what it finds in another format at each product. Where weights are stored in
    the compute format there is nothing to convert, so that it is left away; fp32 is what autocast
    cannot convert to.
    """
    if compute in ("fp32", stored):
        return nullcontext()
    return torch.autocast(device.type, DType(compute).torch())
