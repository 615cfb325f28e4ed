"""Rotary position embedding: positions enter attention as rotations of queries and keys."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from setpoint.model.attention.config import LinearScaling, Llama3Scaling, RopeScaling, YarnScaling


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

    The angle of position p in plane i is p * base^(-2i / head_dim) (RoPE, Su et al., 2021). Angles
    are computed in float64, because in float32 the product itself is off by 1e-3 radians at
    position 16384. The result is neither cached nor kept in a buffer, so it is correct for any
    slice of any sequence, on any device, after any change of the module's dtype, and after
    construction on the meta device.

    Arguments:
        positions: (S,) or (B, S) integers; they need neither start at zero nor be consecutive.
        base: the longest wavelength is 2 * pi * base positions (in the limit of many planes).
        scaling: the rule that stretches the wavelengths; None: no scaling.
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
    """Rotate queries or keys by the angles of their positions.

    Plane i is spanned by components i and i + head_dim / 2 (the split-half layout), so the rotation
    is two products and one exchange of halves over contiguous memory. If the rotation has fewer
    dimensions than x, the other dimensions are unchanged.

    Returns:
        (B, S, heads, head_dim) in the dtype of x; lower precisions are rotated in fp32.
    """
    size = by.cos.shape[-1]
    if size < x.shape[-1]:
        return torch.cat((rotate(x[..., :size], by), x[..., size:]), dim=-1)
    first, second = x.chunk(2, dim=-1)
    return (x * by.cos + torch.cat((second, first), dim=-1) * by.sin).to(x.dtype)


class Frequencies(NamedTuple):
    """The angles by which a head's planes turn from one position to the next.

    Arguments:
        radians: (head_dim / 2,) float64, per position.
        scale: factor on queries and keys; 1 except for YaRN.
    """

    radians: Tensor
    scale: float = 1.0


def frequencies(
    head_dim: int,
    base: float,
    scaling: RopeScaling | None = None,
    device: torch.device | None = None,
) -> Frequencies:
    """Compute each plane's angle per position: base^(-2i / head_dim) (RoPE, Su et al., 2021).

    Arguments:
        base: the longest wavelength is 2 * pi * base positions (in the limit of many planes).
        scaling: the rule that slows planes down; None: no scaling.
    """
    plane = torch.arange(0, head_dim, 2, dtype=torch.float64, device=device)
    radians = base ** (-plane / head_dim)
    match scaling:
        case LinearScaling():
            # Equivalent to dividing positions (Position Interpolation, Chen et al., 2023).
            return Frequencies(radians / scaling.factor)
        case Llama3Scaling():
            return Frequencies(llama3_scaling(radians, scaling))
        case YarnScaling():
            # Larger queries and keys make attention over longer sequences sharper.
            scale = scaling.attention_factor
            scale = 0.1 * math.log(scaling.factor) + 1.0 if scale is None else scale
            return Frequencies(yarn_scaling(radians, scaling, head_dim, base), scale)
        case _:
            return Frequencies(radians)


def llama3_scaling(radians: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Slow the planes that rarely turn over the original length (Llama 3.1, Meta, 2024).

    A plane turns t = original_length / wavelength times. With k = (t - low) / (high - low), clamped
    to 0 .. 1, it keeps the fraction k of its frequency, and the rest is divided by the factor:
    f' = k f + (1 - k) f / factor, where low and high are the two frequency factors. If these are
    equal, as in Llama 4, k is 0 below them, and 1 at or above them.
    """
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    turns = scaling.original_length * radians / (2 * math.pi)
    if low == high:
        kept = (turns >= low).to(turns.dtype)
    else:
        kept = ((turns - low) / (high - low)).clamp(0, 1)
    return kept * radians + (1 - kept) * radians / scaling.factor


def yarn_scaling(radians: Tensor, scaling: YarnScaling, head_dim: int, base: float) -> Tensor:
    """Slow the planes that rarely turn over the original length; the ramp is linear in the plane.

    Plane i turns n times over the original length L at i(n) = head_dim * ln(L / (2 pi n)) / (2
    ln(base)). Planes up to i(beta_fast) keep their frequency; from i(beta_slow) on, it is divided
    by the factor; in between, the two are blended (YaRN, Peng et al., 2023, section 3.2).
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
