"""The orthogonal matrix nearest to a matrix, about, by Newton and Schulz's iteration."""

from __future__ import annotations

import torch
from torch import Tensor

# Of the polynomial a x + b x^3 + c x^5, which takes singular values to about 1 in few steps
# (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon/).
A, B, C = 3.4445, -4.7750, 2.0315
LEAST_NORM = 1e-7


def orthogonalize(matrices: Tensor, steps: int) -> Tensor:
    """Replace the singular values of matrices by numbers between about 0.7 and 1.2.

    Computed in bf16, as in torch.optim.Muon, on the side of the matrix that is shorter.

    Arguments:
        matrices: (N, rows, columns), each by itself; not changed.
    """
    x = matrices.bfloat16()
    # One alone is multiplied as torch.optim.Muon does it, so that even the last bits are the same.
    alone = len(x) == 1
    if alone:
        x = x[0]
    multiply_add = torch.addmm if alone else torch.baddbmm
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    # The largest singular value is then at most 1.
    norms = torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True)
    x = x / norms.clamp(min=LEAST_NORM)
    for _ in range(steps):
        gram = x @ x.mT
        polynomial = multiply_add(gram, gram, gram, beta=B, alpha=C)
        x = multiply_add(x, polynomial, x, beta=A)
    if tall:
        x = x.mT
    return x[None] if alone else x
