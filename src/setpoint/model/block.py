"""One layer of the transformer."""

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional as F

from setpoint.model.attention import Attention
from setpoint.model.feed_forward import FeedForward
from setpoint.model.norm import RMSNorm
from setpoint.model.rope import Rotation

if TYPE_CHECKING:
    from setpoint.model.config import Transformer as TransformerConfig


class Block(nn.Module):
    """Attention, then feed-forward, each normalized before and added to the residual stream.

    Arguments:
        config: the model's configuration.
    """

    def __init__(self, config: "TransformerConfig") -> None:
        super().__init__()
        self.dropout = config.dropout
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.attention = Attention(config)
        self.feed_forward_norm = RMSNorm(config.dim, config.norm_eps)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        """Apply the layer.

        Arguments:
            x: (B, S, dim) residual stream.
            rotation: of the S positions.

        Returns:
            (B, S, dim) residual stream.
        """
        x = x + self._drop(self.attention(self.attention_norm(x), rotation))
        return x + self._drop(self.feed_forward(self.feed_forward_norm(x)))

    def _drop(self, x: Tensor) -> Tensor:
        if self.dropout and self.training:
            return F.dropout(x, self.dropout)
        return x
