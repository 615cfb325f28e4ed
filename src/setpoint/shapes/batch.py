"""What goes from the data to the model and its loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

IGNORE_INDEX: Final = -100
"""The target of a position that takes no part in the loss; PyTorch's own default."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Windows side by side: what goes in, and what comes one token later.

    Arguments:
        targets: (B, S) int64; `IGNORE_INDEX` where nothing is to be predicted.
        target_tokens: how many targets count.
        target_bytes: how many bytes those stand for. A separator is predicted but is no byte:
            bits per byte = sum of -log2 p over `target_tokens` / `target_bytes`.
        weights: (B, S) fp32, how much each target weighs in the loss; a target that weighs 0 does
            not count. None: all weigh 1.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    target_tokens: int
    target_bytes: int
    weights: torch.Tensor | None = None

    def to(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Move what a model and its loss read."""
        weights = None if self.weights is None else self.weights.to(device)
        return self.inputs.to(device), self.targets.to(device), weights
