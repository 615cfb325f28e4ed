"""What autocast does to a tensor: its dtype, and one cast where there would be several."""

import torch
from torch import Tensor


def cast_once(x: Tensor) -> Tensor:
    """Cast to the autocast dtype before several projections read the same tensor.

    Autocast casts the input of every matrix product anew, forward and backward. Outside autocast
    this does nothing.
    """
    device = x.device.type
    if torch.is_autocast_enabled(device):
        return x.to(torch.get_autocast_dtype(device))
    return x


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype of the matrix products that read a tensor."""
    device = x.device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype
