"""Position interpolation: all wavelengths grow by one factor."""

from torch import Tensor

from setpoint.model.rope.config import Linear


def stretch_all(radians: Tensor, scaling: Linear) -> Tensor:
    """Divide all frequencies by the factor, which is to divide positions by it.

    Position Interpolation, Chen et al., 2023.

    Arguments:
        radians: (head_dim / 2,) per position.

    Returns:
        (head_dim / 2,) per position.
    """
    return radians / scaling.factor
