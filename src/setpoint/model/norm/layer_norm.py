"""Layer normalization."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from setpoint.model.initialize import Constant, Initializer

if TYPE_CHECKING:
    from setpoint.model.norm.config import LayerNorm as LayerNormConfig


class LayerNorm(nn.Module):
    """Shift each vector to mean zero, scale it to variance one, then apply a learned affine map.

    y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias (layer norm, Ba et al., 2016).

    Arguments:
        config: the resolved section; says whether there is a bias.
        eps: keeps the division finite for vectors that hardly vary.
    """

    def __init__(self, config: "LayerNormConfig", *, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if config.bias else None

    def initializers(self) -> dict[str, Initializer]:
        """Return how the parameters start: as the identity."""
        rules: dict[str, Initializer] = {"weight": Constant(1.0)}
        if self.bias is not None:
            rules["bias"] = Constant(0.0)
        return rules

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis.

        Arguments:
            x: (..., dim); statistics of lower precisions are taken in fp32.

        Returns:
            (..., dim) in the dtype of x, or in fp32 where autocast asks for it.
        """
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.layer_norm(x, (x.shape[-1],), self.weight.to(x.dtype), bias, self.eps)
