"""Rounding up or down at random, so that what is too small to be kept is kept on average."""

from __future__ import annotations

import torch
from torch import Tensor


def round_stochastically(value: Tensor, generator: torch.Generator) -> Tensor:
    """Round fp32 to bf16, to either neighbour with the probability of its closeness.

    A bf16 number is an fp32 number without its lower 16 bits. A random number of 16 bits is added
    to these and they are cut off: the carry comes with the probability of what is cut off, so that
    the mean over many roundings is the value itself (Zamirai et al., 2020,
    https://arxiv.org/abs/2010.06192). Numbers that bf16 has stay as they are, infinities too, and
    what is no number as the result of arithmetic stays none.
    """
    # Four numbers of 16 bits at once: drawing them takes longest.
    drawn = torch.empty((value.numel() + 3) // 4, dtype=torch.int64, device=value.device)
    drawn.random_(-(2**63), None, generator=generator)
    noise = drawn.view(torch.int16)[: value.numel()].view(value.shape)
    raised = noise.to(torch.int32).bitwise_and_(0xFFFF).add_(value.view(torch.int32))
    return raised.bitwise_right_shift_(16).to(torch.int16).view(torch.bfloat16)
