"""Liger's fused cross-entropy from hidden states, for GPUs."""

import importlib
import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from setpoint.config import Problem, SetpointError
from setpoint.loss.forms import LossOutput
from setpoint.loss.weighing import Weigher
from setpoint.shapes.batch import IGNORE_INDEX
from setpoint.shapes.outcome import Projection

if TYPE_CHECKING:
    from setpoint.loss.config import LigerCrossEntropy


def missing_problems(_: "LigerCrossEntropy") -> Iterator[Problem]:
    """Find that this loss cannot be used here."""
    if why := missing():
        yield Problem("type", why, valid=("chunked_cross_entropy",), hint="It gives the same loss.")


def missing() -> str | None:
    """Say why this loss cannot be used here.

    Returns:
        the reason; None if it can.
    """
    if importlib.util.find_spec("liger_kernel") is None:
        return "needs the package liger-kernel: pip install 'setpoint[liger]'"
    if not torch.cuda.is_available():
        return "needs a GPU: its kernels are written in Triton, and no GPU is found here"
    return None


class LigerCrossEntropyLoss:
    """Sum of cross-entropy and z-loss by liger-kernel (Hsu et al., 2024), in chunks.

    Raises:
        SetpointError: the package or a GPU is missing.
    """

    def __init__(self, config: "LigerCrossEntropy") -> None:
        if why := missing():
            raise SetpointError(f"loss.type = liger_cross_entropy: {why}")
        # It compiles kernels and takes seconds to import, so only those who use it pay for it.
        functional = importlib.import_module("liger_kernel.transformers.functional")
        self.function = functional.liger_fused_linear_cross_entropy
        self.weigh = Weigher(config.ignore_index)
        self.z_loss = config.z_loss

    def from_hidden(
        self,
        hidden: Tensor,
        projection: Projection,
        targets: Tensor,
        weights: Tensor | None = None,
    ) -> LossOutput:
        """Compute the loss of one micro-batch.

        Arguments:
            targets: (B, S) int64; IGNORE_INDEX marks positions that do not count.

        Returns:
            Sums, not means; backward can be run through them once.

        Raises:
            SetpointError: the data weighs its targets.
        """
        if weights is not None:
            raise SetpointError(
                "loss.type = liger_cross_entropy cannot weigh tokens, and the data does\nValid: "
                "cross_entropy, chunked_cross_entropy or linear_cross_entropy"
            )
        targets, _ = self.weigh(targets)
        # fp32 states: gradients add up over chunks, and the z-loss comes, in their format. Matrix
        # products are computed in autocast's all the same.
        result = self.function(
            hidden.flatten(0, 1).float() * projection.scale,
            projection.weight[: projection.vocab_size],
            targets.flatten(),
            ignore_index=IGNORE_INDEX,
            lse_square_scale=self.z_loss,
            reduction="sum",
            softcap=projection.soft_cap,
            return_z_loss=self.z_loss > 0,
        )
        if not self.z_loss:
            return LossOutput(result, result.detach())
        return LossOutput(result.loss, (result.loss - result.z_loss).detach())
