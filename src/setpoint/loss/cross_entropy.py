"""Cross-entropy of logits, with weights, label smoothing and a z-loss."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from setpoint.loss.columns import statistics
from setpoint.loss.forms import LossOutput
from setpoint.loss.weighing import Weigher
from setpoint.shapes.batch import IGNORE_INDEX
from setpoint.shapes.outcome import Columns

if TYPE_CHECKING:
    from setpoint.loss.config import CrossEntropy


class CrossEntropyLoss:
    """Sum over tokens of w [(1 - s) CE + s mean over classes of -log p + z_loss log(Z)^2].

    CE is -log p of the target, p the softmax of the logits, Z its denominator, w the weight of the
    target and s the label smoothing (smoothing: Szegedy et al., 2016; z-loss: PaLM, Chowdhery et
    al., 2022).

    Arguments:
        config: gives ignore_index, token_weights, z_loss and label_smoothing.
    """

    def __init__(self, config: "CrossEntropy") -> None:
        self.weigh = Weigher(config.ignore_index, config.token_weights)
        self.z_loss = config.z_loss
        self.label_smoothing = config.label_smoothing
        self.per_token = False

    def __call__(
        self,
        logits: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
        columns: Columns | None = None,
    ) -> LossOutput:
        """Compute the loss of one micro-batch; nothing waits for the device.

        Arguments:
            logits: (B, S, V) in any floating point dtype; computed in fp32 (fp64 stays fp64).
            targets: (B, S) int64; IGNORE_INDEX marks positions that do not count.
            weights: (B, S) fp32, from the data; None: all weigh 1.
            columns: those of the logits that are given; None: all.

        Returns:
            Sums, not means; all zero where no target is valid.
        """
        targets, weights = self.weigh(targets, weights)
        flat = None if weights is None else weights.flatten()
        return self.sums(logits.flatten(0, 1), targets.flatten(), flat, columns)

    def sums(
        self,
        logits: Tensor,
        targets: Tensor,
        weights: Tensor | None,
        columns: Columns | None = None,
    ) -> LossOutput:
        """Compute the loss of tokens that have been weighed.

        Arguments:
            targets: (T,) int64; IGNORE_INDEX marks positions that do not count.
            weights: (T,) fp32, zero at those positions; None: the others weigh 1.
            columns: see `__call__`.
        """
        if logits.dtype != torch.float64:
            logits = logits.float()
        plain = weights is None and not self.z_loss and not self.label_smoothing
        if plain and columns is None:
            return summed(logits, targets, self.per_token)
        valid = targets != IGNORE_INDEX
        # log Z is needed by itself, so the cross-entropy is made from it: one pass, not two.
        smoothed = self.label_smoothing > 0
        log_z, chosen, mean = statistics(logits, targets.where(valid, 0), columns, smoothed)
        each = log_z - chosen
        of_tokens = each.where(valid, 0.0)
        nats = of_tokens.sum()
        total = nats if weights is None else _weighted_sum(each, valid, weights)
        if self.label_smoothing:
            # (1 - s) (log Z - x_target) + s (log Z - mean(x)) = CE + s (x_target - mean(x))
            pull = chosen - mean
            total = total + self.label_smoothing * _weighted_sum(pull, valid, weights)
        if self.z_loss:
            total = total + self.z_loss * _weighted_sum(log_z.square(), valid, weights)
        return LossOutput(total, nats.detach(), of_tokens.detach() if self.per_token else None)


def summed(logits: Tensor, targets: Tensor, per_token: bool) -> LossOutput:
    """The plain cross-entropy of (T, V) logits, which nothing weighs."""
    if not per_token:
        total = F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="sum")
        return LossOutput(total, total.detach())
    # The two steps of F.cross_entropy, bit for bit; single tokens are read between them.
    log_p = logits.log_softmax(dim=-1)
    total = F.nll_loss(log_p, targets, ignore_index=IGNORE_INDEX, reduction="sum")
    valid = targets != IGNORE_INDEX
    chosen = log_p.detach().gather(-1, targets.where(valid, 0).unsqueeze(-1)).squeeze(-1)
    return LossOutput(total, total.detach(), (-chosen).where(valid, 0.0))


def _weighted_sum(each: Tensor, valid: Tensor, weights: Tensor | None) -> Tensor:
    # What does not count may be infinite or no number, so it is left out, not multiplied by zero.
    each = each.where(valid, 0.0)
    return each.sum() if weights is None else (each * weights).sum()
