"""What goes from the data to the model and its loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import torch

IGNORE_INDEX: Final = -100
"""The target of a position that takes no part in the loss; PyTorch's own default."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Sequences side by side: what goes in, and what comes one token later.

    Arguments:
        inputs: (B, S) int64 tokens.
        targets: (B, S) int64; `IGNORE_INDEX` where nothing is to be predicted.
        tokens: how many tokens the model reads, padding left out.
        target_tokens: how many targets are not marked with `IGNORE_INDEX`.
        target_bytes: how many bytes those stand for. A separator is predicted but is no byte:
            bits per byte = sum of -log2 p over `target_tokens` / `target_bytes`.
        weights: (B, S) fp32, how much each target weighs in the loss; a target that weighs 0 does
            not count. None: all weigh 1.
        positions: (B, S) integers, negative for padding that no token is to see. None: 0 .. S - 1;
            padding is at the end then, where causal attention hides it.
        documents: (B, S) integers; a token sees those of its own document only. None: all.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    tokens: int
    target_tokens: int
    target_bytes: int
    weights: torch.Tensor | None = None
    positions: torch.Tensor | None = None
    documents: torch.Tensor | None = None

    def to(self, device: torch.device) -> Batch:
        """Move the tensors, which the model and its loss read."""
        tensors = {name: getattr(self, name) for name in TENSORS}
        moved = {name: each.to(device) for name, each in tensors.items() if each is not None}
        return replace(self, **moved)


TENSORS = ("inputs", "targets", "weights", "positions", "documents")
