"""YaRN: a ramp over planes from kept to stretched wavelengths, and sharper attention."""

import math

import torch
from torch import Tensor

from setpoint.model.rope.config import Yarn


def stretch_by_turns(radians: Tensor, scaling: Yarn, head_dim: int, base: float) -> Tensor:
    """Slow the planes that turn seldom over the original length; the ramp is linear in the plane.

    Plane i turns n times over the original length L at
    i(n) = head_dim * ln(L / (2 pi n)) / (2 ln(base)). Planes up to i(beta_fast) keep their
    frequency, planes from i(beta_slow) on have it divided by the factor, those between have a
    part of each (YaRN, Peng et al., 2023, section 3.2).
    """

    def plane_of(turns: float) -> float:
        length = scaling.original_length / (2 * math.pi * turns)
        return head_dim * math.log(length) / (2 * math.log(base))

    first, last = plane_of(scaling.beta_fast), plane_of(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    # The published code cuts the ramp at head_dim - 1, though there are half as many planes.
    first, last = max(first, 0), max(min(last, head_dim - 1), 0)
    if first == last:
        last += 0.001
    plane = torch.arange(radians.shape[0], dtype=radians.dtype, device=radians.device)
    stretched = ((plane - first) / (last - first)).clamp(0, 1)
    return (1 - stretched) * radians + stretched * radians / scaling.factor


def attention_factor(scaling: Yarn) -> float:
    """The scale of queries and of keys, which makes attention over longer sequences sharper."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return 0.1 * math.log(scaling.factor) + 1.0
