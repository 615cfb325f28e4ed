"""Causal self-attention with grouped queries and rotary positions."""

import math
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional as F

from setpoint.model.autocast import cast_once
from setpoint.model.initialize import Initializer, Normal
from setpoint.model.rope import Rotation, rotate

if TYPE_CHECKING:
    from setpoint.model.config import Transformer as TransformerConfig


class Attention(nn.Module):
    """Every position attends to itself and to those before it.

    Softmax(Q K^T / sqrt(head_dim)) V per head (Vaswani et al., 2017), where several query heads
    share one key-value head (grouped-query attention, Ainslie et al., 2023).

    Arguments:
        config: gives dim, heads, kv_heads, head_dim, and the scale of initialization.
    """

    def __init__(self, config: "TransformerConfig") -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.grouped = config.kv_heads != config.heads
        self.init_std = config.init_std
        self.output_std = config.init_std / math.sqrt(2 * config.layers)
        query_dim, kv_dim = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.query = nn.Linear(config.dim, query_dim, bias=False)
        self.key = nn.Linear(config.dim, kv_dim, bias=False)
        self.value = nn.Linear(config.dim, kv_dim, bias=False)
        self.output = nn.Linear(query_dim, config.dim, bias=False)

    def initializers(self) -> dict[str, Initializer]:
        """Return how each projection starts; the one that writes to the residual is smaller.

        The sum of 2 * layers such outputs then keeps its size whatever the depth (GPT-2,
        Radford et al., 2019).

        Returns:
            rules by the name of the parameter, relative to this module.
        """
        normal = Normal(self.init_std)
        return {
            "query.weight": normal,
            "key.weight": normal,
            "value.weight": normal,
            "output.weight": Normal(self.output_std),
        }

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        """Mix information between positions.

        Arguments:
            x: (B, S, dim) normalized hidden states.
            rotation: of the S positions.

        Returns:
            (B, S, dim), to be added to the residual stream.
        """
        x = cast_once(x)
        # The head count is read off the shape: under tensor parallelism it is the local one.
        query = rotate(self.query(x).unflatten(-1, (-1, self.head_dim)), rotation)
        key = rotate(self.key(x).unflatten(-1, (-1, self.head_dim)), rotation)
        value = self.value(x).unflatten(-1, (-1, self.head_dim))
        mixed = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            is_causal=True,
            enable_gqa=self.grouped,
        )
        return self.output(mixed.transpose(1, 2).flatten(2))
