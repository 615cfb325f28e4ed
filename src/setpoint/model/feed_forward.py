"""The gated feed-forward network."""

import math
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional as F

from setpoint.model.autocast import cast_once
from setpoint.model.initialize import Initializer, Normal

if TYPE_CHECKING:
    from setpoint.model.config import Transformer as TransformerConfig


class FeedForward(nn.Module):
    """down(silu(gate(x)) * up(x)), at each position by itself (SwiGLU, Shazeer, 2020).

    Arguments:
        config: gives dim, ffn_dim, and the scale of initialization.
    """

    def __init__(self, config: "TransformerConfig") -> None:
        super().__init__()
        self.init_std = config.init_std
        self.output_std = config.init_std / math.sqrt(2 * config.layers)
        self.gate = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.up = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.down = nn.Linear(config.ffn_dim, config.dim, bias=False)

    def initializers(self) -> dict[str, Initializer]:
        """Return how each projection starts; the one that writes to the residual is smaller.

        Returns:
            rules by the name of the parameter, relative to this module.
        """
        normal = Normal(self.init_std)
        return {
            "gate.weight": normal,
            "up.weight": normal,
            "down.weight": Normal(self.output_std),
        }

    def forward(self, x: Tensor) -> Tensor:
        """Transform each position.

        Arguments:
            x: (..., dim) normalized hidden states.

        Returns:
            (..., dim), to be added to the residual stream.
        """
        x = cast_once(x)
        return self.down(F.silu(self.gate(x)) * self.up(x))
