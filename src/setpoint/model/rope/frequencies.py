"""How fast each plane of a head turns, and the rules that slow the turning down."""

from typing import NamedTuple

import torch
from torch import Tensor

from setpoint.model.rope.config import Linear, Llama3, RopeScaling, Yarn
from setpoint.model.rope.linear import stretch_all
from setpoint.model.rope.llama3 import stretch_long_waves
from setpoint.model.rope.yarn import attention_factor, stretch_by_turns


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
