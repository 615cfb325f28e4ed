"""Attention step by step, as the formula says; what the other backends are compared with."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from setpoint.model.attention.layout import Layout, visible


class Eager:
    """Plain tensor operations, which hold all S x L weights."""

    def prepare_mask(self, layout: Layout, window: int | None) -> Tensor:
        """Make the mask.

        Arguments:
            window: positions that one sees, itself included; None: all before it.
        """
        return visible(layout, window)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor,
        *,
        scale: float | None = None,
        soft_cap: float | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        """Mix the values that each query sees: softmax(scale * Q K^T) V (Vaswani et al., 2017).

        Arguments:
            scale: of the products; None: 1 / sqrt(D).
            soft_cap: scaled products x become soft_cap * tanh(x / soft_cap) (Gemma 2).
        """
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        # A key-value head meets the heads that it serves by broadcasting: (B, K, H/K, S, D).
        heads = query.transpose(1, 2).unflatten(1, (key.shape[2], -1))
        scores = heads @ key.permute(0, 2, 3, 1).unsqueeze(2) * scale
        if soft_cap is not None:
            scores = torch.tanh(scores / soft_cap) * soft_cap
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        scores = scores.masked_fill(~mask.unsqueeze(2), -torch.inf)
        weights = F.dropout(scores.softmax(dim=-1), dropout).to(value.dtype)
        mixed = weights @ value.transpose(1, 2).unsqueeze(2)
        return mixed.flatten(1, 2).transpose(1, 2)
