"""Choose a token from logits."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from setpoint.config import SetpointError
from setpoint.infer import filters


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; the filters apply in this order.

    Arguments:
        repetition_penalty: above 1 makes tokens that were seen less likely; 1 changes nothing.
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: draw among the k likeliest; None: among all.
        top_p: draw among the fewest likeliest that hold this share; None: among all.
        min_p: draw among those at least so likely, relative to the likeliest; None: among all.

    Raises:
        SetpointError: no token could be drawn so; the message says which setting is wrong.
    """

    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise SetpointError(
                f"temperature = {self.temperature}: it must be 0 (greedy) or greater"
            )
        if self.top_k is not None and self.top_k < 1:
            raise SetpointError(
                f"top_k = {self.top_k}: it must be at least 1, or null for all tokens"
            )
        for name in ("top_p", "min_p"):
            share = getattr(self, name)
            if share is not None and not 0 < share <= 1:
                raise SetpointError(
                    f"{name} = {share}: it must be above 0 and at most 1, or null for all tokens"
                )
        if not 0 < self.repetition_penalty < float("inf"):
            raise SetpointError(
                f"repetition_penalty = {self.repetition_penalty}: it must be above 0; 1 changes "
                f"nothing"
            )


def sample(
    logits: Tensor,
    sampling: Sampling,
    *,
    generators: Sequence[torch.Generator] | None = None,
    seen: Tensor | None = None,
) -> Tensor:
    """Draw one token for each row of logits.

    A row uses one number of its own generator, whatever the filters are, so that what is drawn
    for it does not depend on the rows beside it.

    Arguments:
        generators: one for each row, on the CPU; None: torch's own for all.
        seen: (B, V) bool, the tokens that the repetition penalty applies to; None: none.

    Raises:
        SetpointError: logits are not numbers, as those of damaged or diverged weights.
    """
    logits = logits.float()
    if logits.isnan().any():
        raise SetpointError(
            "the model gives logits that are not numbers (nan), so no token can be chosen: its "
            "weights are damaged or diverged, or too large for the number format"
        )
    if seen is not None and sampling.repetition_penalty != 1:
        logits = filters.repetition(logits, seen, sampling.repetition_penalty)
    if sampling.temperature == 0:
        return logits.argmax(dim=-1)
    logits = filters.scaled(logits, sampling.temperature)
    if sampling.top_k is not None:
        logits = filters.top_k(logits, sampling.top_k)
    if sampling.top_p is not None:
        logits = filters.top_p(logits, sampling.top_p)
    if sampling.min_p is not None:
        logits = filters.min_p(logits, sampling.min_p)
    # The token at which the sum of the probabilities passes a number drawn from [0, 1).
    reached = logits.double().softmax(dim=-1).cumsum(dim=-1)
    drawn = _uniform(len(logits), generators).to(logits.device).unsqueeze(-1)
    tokens = torch.searchsorted(reached, drawn * reached[:, -1:], right=True).squeeze(-1)
    # Rounding can leave the last sum at the number itself; what holds nothing is never drawn.
    return tokens.minimum(_last_possible(logits))


def _uniform(count: int, generators: Sequence[torch.Generator] | None) -> Tensor:
    """(count,) fp64 numbers in [0, 1), drawn on the CPU, which is the same on every machine."""
    if generators is None:
        return torch.rand(count, dtype=torch.float64)
    drawn = [torch.rand(1, dtype=torch.float64, generator=each) for each in generators]
    return torch.cat(drawn) if drawn else torch.empty(0, dtype=torch.float64)


def _last_possible(logits: Tensor) -> Tensor:
    """(B,) the token with the highest number among those that can be drawn."""
    possible = logits > filters.EXCLUDED
    return logits.shape[-1] - 1 - possible.flip(-1).int().argmax(dim=-1)
