"""The configuration of the loss."""

from __future__ import annotations

from typing import Final

from setpoint.config import Config, field

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

    z_loss: float = field(default=0.0, ge=0)
    """Weight of log(Z)^2 per token, where Z is the softmax's denominator; keeps logits from
    drifting (PaLM uses 1e-4). 0 leaves the term out."""
