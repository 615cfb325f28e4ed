"""How fast each plane of a head turns, and the rules that slow the turning down."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from setpoint.model.rope.config import Linear, Llama3, RopeScaling, Yarn


class Frequencies(NamedTuple):
    """The angles by which a head's planes turn from one position to the next.

    Arguments:
        radians: (head_dim / 2,) float64, per position.
        scale: queries and keys are multiplied by it; 1 but for YaRN.
    """

    radians: Tensor
    scale: float = 1.0


def frequencies(
    head_dim: int,
    base: float,
    scaling: RopeScaling | None = None,
    device: torch.device | None = None,
) -> Frequencies:
    """Compute how far each plane turns at one step.

    Plane i turns by base^(-2i / head_dim) (RoPE, Su et al., 2021), which a rule may then slow.

    Arguments:
        base: the longest wavelength is 2 * pi * base positions (in the limit of many planes).
        scaling: the rule; None: none.
    """
    plane = torch.arange(0, head_dim, 2, dtype=torch.float64, device=device)
    radians = base ** (-plane / head_dim)
    match scaling:
        case Linear():
            return Frequencies(stretch_all(radians, scaling))
        case Llama3():
            return Frequencies(stretch_long_waves(radians, scaling))
        case Yarn():
            stretched = stretch_by_turns(radians, scaling, head_dim, base)
            return Frequencies(stretched, attention_factor(scaling))
        case _:
            return Frequencies(radians)


def stretch_all(radians: Tensor, scaling: Linear) -> Tensor:
    """Divide all frequencies by the factor, which is to divide positions by it.

    Position Interpolation, Chen et al., 2023.

    Arguments:
        radians: (head_dim / 2,) per position.

    Returns:
        (head_dim / 2,) per position.
    """
    return radians / scaling.factor


def stretch_long_waves(radians: Tensor, scaling: Llama3) -> Tensor:
    """Slow the planes that turn seldom over the original length.

    A plane turns t = original_length / wavelength times. It keeps the share
    k = (t - low) / (high - low), cut to 0 .. 1, of its frequency and has the rest divided by the
    factor: f' = k f + (1 - k) f / factor, where low and high are the two frequency factors
    (Llama 3.1, Meta, 2024).

    Arguments:
        radians: (head_dim / 2,) per position.

    Returns:
        (head_dim / 2,) per position.
    """
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    turns = scaling.original_length * radians / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return kept * radians + (1 - kept) * radians / scaling.factor


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
