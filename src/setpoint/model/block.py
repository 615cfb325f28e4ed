"""One layer of the transformer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional as F

from setpoint.model.attention.attention import Attention
from setpoint.model.attention.context import AttentionContext
from setpoint.model.attention.latent import LatentAttention
from setpoint.model.feed_forward import FeedForward
from setpoint.model.moe.layer import MoELayer
from setpoint.model.moe.losses import LayerRouting
from setpoint.model.norm.norms import build_norm

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig


class Block(nn.Module):
    """Attention, then feed-forward, each added to the residual stream.

    Norms stand before them (pre, Xiong et al., 2020), behind them before they are added (post, as
    in OLMo 2), or both (as in Gemma 2).

    Arguments:
        layer: the number of the layer, from 0; decides what it attends to and whether it has
            experts.
    """

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.residual_scale = config.residual_scale
        before = config.norm_placement in ("pre", "both")
        after = config.norm_placement in ("post", "both")
        self.attention_norm = build_norm(config, config.dim) if before else None
        self.attention = build_attention(config, layer)
        self.attention_output_norm = build_norm(config, config.dim) if after else None
        self.feed_forward_norm = build_norm(config, config.dim) if before else None
        self.has_experts = config.moe is not None and config.moe.has_experts(layer)
        if self.has_experts:
            assert config.moe is not None
            self.feed_forward = MoELayer(config, config.moe.layers_with_experts(layer))
        else:
            self.feed_forward = FeedForward(config)
        self.feed_forward_output_norm = build_norm(config, config.dim) if after else None

    def forward(self, x: Tensor, context: AttentionContext) -> tuple[Tensor, LayerRouting | None]:
        """Apply the layer.

        Returns:
            (B, S, dim) residual stream; and in training, where there are experts, how tokens chose
            them.
        """
        normed = x if self.attention_norm is None else self.attention_norm(x)
        x = self._add(x, self.attention(normed, context), self.attention_output_norm)
        normed = x if self.feed_forward_norm is None else self.feed_forward_norm(x)
        routing = None
        if self.has_experts:
            added, routing = self.feed_forward(normed, context.positions)
        else:
            added = self.feed_forward(normed)
        return self._add(x, added, self.feed_forward_output_norm), routing

    def _add(self, x: Tensor, added: Tensor, norm: nn.Module | None) -> Tensor:
        if norm is not None:
            added = norm(added)
        if self.dropout and self.training:
            added = F.dropout(added, self.dropout)
        if self.residual_scale != 1.0:
            added = added * self.residual_scale
        return x + added


def build_attention(config: TransformerConfig, layer: int) -> Attention | LatentAttention:
    """Make the attention of a layer.

    Arguments:
        layer: the index of the layer in the whole model, from 0.

    Returns:
        a module that maps (B, S, dim) and an `AttentionContext` to (B, S, dim).
    """
    return Attention(config, layer) if config.mla is None else LatentAttention(config, layer)
