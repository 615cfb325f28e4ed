"""The configuration of the loss."""

from __future__ import annotations

from math import inf
from typing import Final

from setpoint.config import Config, field
from setpoint.config.foreign.section import Foreign

IGNORE_INDEX: Final = -100
"""The target of a position that takes no part in the loss; PyTorch's own default."""


class LossConfig(Config):
    """What all losses share.

    They sum over tokens, and the loop divides by the tokens of the whole batch, so that no token
    weighs more for the micro-batch it happens to be in.
    """


class CrossEntropy(
    LossConfig, type="cross_entropy", owner="setpoint.loss.cross_entropy:CrossEntropyLoss"
):
    """Cross-entropy of the next token, in nats."""

    z_loss: float = field(
        default=0.0,
        ge=0,
        lt=inf,
        also_called=(
            "z_loss_multiplier",
            "z_loss_weight",
            "z_loss_coef",
            "auxiliary_loss_multiplier",
        ),
    )
    """Weight of log(Z)^2 per token, where Z is the softmax's denominator; keeps logits from
    drifting (PaLM uses 1e-4). 0 leaves the term out."""


class ImportedLoss(LossConfig, Foreign, type="import", owner="setpoint.loss.imported:ImportedLoss"):
    """Any loss by its import path, such as torch.nn.CrossEntropyLoss; other keys are its arguments.

    It is made once and called with (N, V) fp32 logits and (N,) targets; it must return the sum over
    the targets that are not -100. Where it takes reduction and ignore_index, it gets "sum" and
    -100.
    """

    trusts = ("torch.nn",)
    handed = ("reduction", "ignore_index")
