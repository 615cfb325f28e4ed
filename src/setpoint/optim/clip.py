"""Gradient clipping by global norm."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], max_norm: float | None) -> Tensor:
    """Scale all gradients so that their global norm is at most max_norm.

    Each gradient is multiplied by min(1, max_norm / (norm + 1e-6)) (Pascanu et al., 2013). The
    norm stays on its device: nothing waits for it until the caller reads it. A norm that is not
    finite makes all gradients non-finite; it is for the caller to look before the update.

    Arguments:
        parameters: those that may have gradients.
        max_norm: the limit; None measures without clipping.

    Returns:
        The norm before clipping, a scalar tensor; 0 where there are no gradients.
    """
    held = [parameter for parameter in parameters if parameter.grad is not None]
    norm = get_total_norm([p.grad for p in held if p.grad is not None])
    if max_norm is not None:
        clip_grads_with_norm_(held, max_norm, norm)
    return norm
