"""What is done to logits before a token is drawn from them.

Each filter maps (B, V) fp32 logits to (B, V) logits in which what may not be drawn is -inf.
`sample` applies them in the order in which they stand here, that of Hugging Face's `generate`.
"""

import torch
from torch import Tensor

EXCLUDED = float("-inf")


def repetition(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Make tokens that were seen less likely (CTRL, Keskar et al., 2019).

    Arguments:
        seen: (B, V) bool, the tokens of the prompt and of what was drawn so far.
        penalty: divides the positive logits of those tokens, and multiplies the negative ones; 1
            changes nothing, below 1 they become more likely.
    """
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def scaled(logits: Tensor, temperature: float) -> Tensor:
    """Divide by the temperature, with the maximum of each row moved to 0.

    Arguments:
        temperature: above 0; without the move a tiny one would overflow.
    """
    return (logits - logits.amax(dim=-1, keepdim=True)) / temperature


def top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k likeliest tokens, and those equal to the k-th.

    Arguments:
        k: at least 1; V or more keeps all.
    """
    least = logits.topk(min(k, logits.shape[-1]), dim=-1).values[:, -1:]
    return logits.masked_fill(logits < least, EXCLUDED)


def top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the fewest likeliest tokens that hold a share p (nucleus, Holtzman et al., 2020).

    Arguments:
        p: in (0, 1]; of equal tokens at the edge, the one with the higher number stays first.
    """
    # From the least likely up: what all tokens up to here hold together is not needed for p.
    ordered, places = logits.sort(dim=-1, stable=True)
    surplus = ordered.softmax(dim=-1).cumsum(dim=-1) <= 1 - p
    surplus[:, -1] = False  # rounding must not take the likeliest one
    return logits.masked_fill(surplus.scatter(-1, places, surplus), EXCLUDED)


def min_p(logits: Tensor, share: float) -> Tensor:
    """Keep tokens at least `share` times as likely as the first (min-p, Nguyen et al., 2024)."""
    probabilities = logits.softmax(dim=-1)
    least = share * probabilities.amax(dim=-1, keepdim=True)
    return logits.masked_fill(probabilities < least, EXCLUDED)
