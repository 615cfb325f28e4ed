"""Root-mean-square normalization."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from setpoint.model.initialize import Constant, Initializer
from setpoint.model.norm_cpu import rms_norm_cpu


class RMSNorm(nn.Module):
    """Scale each vector to unit root mean square, then each component by a learned weight.

    y = x / sqrt(mean(x^2) + eps) * weight (RMSNorm, Zhang and Sennrich, 2019).

    Arguments:
        dim: size of the last axis.
        eps: keeps the division finite for vectors near zero.
    """

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def initializers(self) -> dict[str, Initializer]:
        """Return how the weight starts: at one, the identity.

        Returns:
            rules by the name of the parameter, relative to this module.
        """
        return {"weight": Constant(1.0)}

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis.

        Arguments:
            x: (..., dim); statistics of lower precisions are taken in fp32.

        Returns:
            (..., dim) in the dtype of x.
        """
        # Eager PyTorch has a fused backward for this on CUDA but none on the CPU, and a compiler
        # fuses the plain form by itself: only eager, undistributed fp32 takes our own way.
        eager = type(x) is Tensor and not torch.compiler.is_compiling()
        if eager and x.is_cpu and x.dtype == self.weight.dtype == torch.float32:
            return rms_norm_cpu(x, self.weight, self.eps)
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)
