"""Choose a token from logits."""

import torch
from torch import Tensor

from setpoint.config import SetpointError


def sample(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw one token for each row of logits.

    Arguments:
        logits: (B, V) in any floating point dtype.
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: draw among the k likeliest only (and those equal to the k-th); None: among all.
        generator: source of randomness on the device of the logits; None: torch's own.

    Returns:
        (B,) int64 tokens.

    Raises:
        SetpointError: a negative temperature, or a top_k below 1.
    """
    check_sampling(temperature, top_k)
    if temperature == 0:
        return logits.argmax(dim=-1)
    logits = logits.float()
    if top_k is not None and top_k < logits.shape[-1]:
        least = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    # Taking the maximum away first keeps a tiny temperature from overflowing.
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
    return torch.multinomial(scaled.softmax(dim=-1), 1, generator=generator).squeeze(-1)


def check_sampling(temperature: float, top_k: int | None) -> None:
    """Refuse settings that no token could be drawn with.

    Arguments:
        temperature: must be finite and at least 0.
        top_k: must be at least 1, or None.

    Raises:
        SetpointError: saying which one is wrong.
    """
    if not 0 <= temperature < float("inf"):
        raise SetpointError(f"temperature = {temperature}: it must be 0 (greedy) or greater")
    if top_k is not None and top_k < 1:
        raise SetpointError(f"top_k = {top_k}: it must be at least 1, or null for all tokens")
