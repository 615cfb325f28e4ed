"""Root-mean-square normalization."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from setpoint.model.initialize import Constant, Initializer
from setpoint.model.norm.rms_norm_cpu import rms_norm_cpu

if TYPE_CHECKING:
    from setpoint.model.norm.config import RMSNorm as RMSNormConfig


class RMSNorm(nn.Module):
    """Scale each vector to unit root mean square, then each component by a learned factor.

    y = x / sqrt(mean(x^2) + eps) * weight (RMSNorm, Zhang and Sennrich, 2019), or with a
    zero-centered weight * (1 + weight) (Gemma, 2024).

    Arguments:
        config: the resolved section; says whether the weight is zero-centered.
        eps: keeps the division finite for vectors near zero.
    """

    def __init__(self, config: "RMSNormConfig", *, dim: int, eps: float) -> None:
        super().__init__()
        self.zero_centered = config.zero_centered
        self.eps = eps
        self.weight = nn.Parameter(torch.full((dim,), self._identity))

    @property
    def _identity(self) -> float:
        return 0.0 if self.zero_centered else 1.0

    def initializers(self) -> dict[str, Initializer]:
        """Return how the weight starts: as the identity."""
        return {"weight": Constant(self._identity)}

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis.

        Arguments:
            x: (..., dim); statistics of lower precisions are taken in fp32.
        """
        # 1 + weight in fp32: bf16 has too few digits near one for a small weight.
        factor = 1.0 + self.weight.float() if self.zero_centered else self.weight
        # Eager PyTorch has a fused backward for this on CUDA but none on the CPU, and a compiler
        # fuses the plain form by itself: only eager, undistributed fp32 takes our own way.
        eager = type(x) is Tensor and not torch.compiler.is_compiling()
        if eager and x.is_cpu and x.dtype == factor.dtype == torch.float32:
            return rms_norm_cpu(x, factor, self.eps)
        return F.rms_norm(x, (x.shape[-1],), factor.to(x.dtype), self.eps)
