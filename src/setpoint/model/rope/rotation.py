"""Rotary position embedding: positions enter attention as rotations of queries and keys."""

from typing import NamedTuple

import torch
from torch import Tensor

from setpoint.model.rope.config import RopeScaling
from setpoint.model.rope.frequencies import frequencies


class Rotation(NamedTuple):
    """Cosines and signed sines of the angles at some positions, ready to be applied.

    Arguments:
        cos: (..., S, 1, head_dim) fp32, each half of the last axis holds the same cosines.
        sin: (..., S, 1, head_dim) fp32, the sines, negated in the first half.
    """

    cos: Tensor
    sin: Tensor


def rotation(
    positions: Tensor, head_dim: int, base: float, scaling: RopeScaling | None = None
) -> Rotation:
    """Compute the rotation for explicit positions.

    The angle of position p in plane i is p * base^(-2i / head_dim) (RoPE, Su et al., 2021).
    Angles are formed in float64: in float32 the product itself is off by 1e-3 radians at
    position 16384. The result is never cached and no buffer holds it, so that it is right for
    any slice of any sequence, on any device, after any change of the module's dtype, and after
    construction on the meta device.

    Arguments:
        positions: (S,) or (B, S) integers; they need not start at zero nor be consecutive.
        base: the longest wavelength is 2 * pi * base positions (in the limit of many planes).
        scaling: the rule that stretches the wavelengths; None: none.
    """
    radians, scale = frequencies(head_dim, base, scaling, positions.device)
    angles = positions.to(torch.float64).unsqueeze(-1) * radians
    cos, sin = angles.cos(), angles.sin()
    if scale != 1.0:
        cos, sin = cos * scale, sin * scale
    cos, sin = cos.float(), sin.float()
    return Rotation(
        cos=torch.cat((cos, cos), dim=-1).unsqueeze(-2),
        sin=torch.cat((-sin, sin), dim=-1).unsqueeze(-2),
    )


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """Rotate queries or keys by the angle of their position.

    Plane i is spanned by components i and i + head_dim / 2 (the split-half layout), so that the
    rotation is two products and one exchange of halves over contiguous memory.

    Returns:
        (B, S, heads, head_dim) in the dtype of x; lower precisions are rotated in fp32.
    """
    first, second = x.chunk(2, dim=-1)
    return (x * by.cos + torch.cat((second, first), dim=-1) * by.sin).to(x.dtype)
