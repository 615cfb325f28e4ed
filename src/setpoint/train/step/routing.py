"""What all ranks chose of a model's experts, as numbers that a collective adds up."""

from __future__ import annotations

import torch
from torch import Tensor

from setpoint.shapes.outcome import Routing


def numbers_of(routing: Routing) -> Tensor:
    """(N,) fp64, all of a routing in one tensor; whole numbers are exact up to 2**53."""
    return torch.cat([each.double().flatten() for each in routing])


def routing_of(numbers: Tensor, like: Routing) -> Routing:
    """The routing whose numbers these are.

    Arguments:
        like: has its shapes and dtypes.
    """
    parts = numbers.split([each.numel() for each in like])
    return Routing(
        *(part.view(each.shape).to(each.dtype) for part, each in zip(parts, like, strict=True))
    )
