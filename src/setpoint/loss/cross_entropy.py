"""Cross-entropy with an optional z-loss."""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from setpoint.loss.config import IGNORE_INDEX

if TYPE_CHECKING:
    from setpoint.loss.config import CrossEntropy


class LossOutput(NamedTuple):
    """Sums over the valid tokens of a micro-batch; divide by tokens of the whole batch.

    Arguments:
        total: fp32 scalar to run backward from: cross-entropy plus z-loss.
        nats: fp32 scalar without gradient: cross-entropy alone, for metrics.
    """

    total: Tensor
    nats: Tensor


class CrossEntropyLoss:
    """Sum over tokens of -log softmax(logits)[target] + z_loss * log(Z)^2.

    Z is the sum of exp(logits) (z-loss: PaLM, Chowdhery et al., 2022).

    Arguments:
        config: gives z_loss.
    """

    def __init__(self, config: "CrossEntropy") -> None:
        self.z_loss = config.z_loss

    def __call__(self, logits: Tensor, targets: Tensor) -> LossOutput:
        """Compute the loss of one micro-batch; nothing waits for the device.

        Arguments:
            logits: (B, S, V) in any floating point dtype; computed in fp32 (fp64 stays fp64).
            targets: (B, S) int64; IGNORE_INDEX marks positions that do not count.

        Returns:
            Sums, not means; all zero where no target is valid.
        """
        flat, wanted = logits.flatten(0, 1), targets.flatten()
        if flat.dtype != torch.float64:
            flat = flat.float()
        if not self.z_loss:
            total = F.cross_entropy(flat, wanted, ignore_index=IGNORE_INDEX, reduction="sum")
            return LossOutput(total, total.detach())
        valid = wanted != IGNORE_INDEX
        # log Z is needed by itself, so the cross-entropy is made from it: one pass, not two.
        log_z = flat.logsumexp(dim=-1)
        chosen = flat.gather(-1, wanted.where(valid, 0).unsqueeze(-1)).squeeze(-1)
        nats = (log_z - chosen).where(valid, 0.0).sum()
        z_term = log_z.square().where(valid, 0.0).sum()
        return LossOutput(nats + self.z_loss * z_term, nats.detach())
