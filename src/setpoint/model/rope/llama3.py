"""The rule of Llama 3.1: only wavelengths that the first training hardly saw are stretched."""

import math

from torch import Tensor

from setpoint.model.rope.config import Llama3


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
