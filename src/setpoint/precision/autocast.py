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

    A pass reads each weight once, so that autocast's cache of cast weights saves no cast; it would
    keep a copy of all weights until the forward pass ends, also of those that FSDP2 has freed.
    """
    if compute in ("fp32", stored):
        return nullcontext()
    return torch.autocast(device.type, DType(compute).torch(), cache_enabled=False)
