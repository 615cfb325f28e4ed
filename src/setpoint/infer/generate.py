"""Generate a continuation, token by token."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from setpoint.config import SetpointError
from setpoint.infer.sample import check_sampling, sample
from setpoint.model.mode import evaluating


def generate(
    model: nn.Module,
    tokens: Tensor,
    *,
    max_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
    context: int | None = None,
    stop: int | None = None,
    on_token: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """Continue each row of tokens by sampling from the model.

    Every token costs a forward pass over the whole context; no keys and values are kept.

    Arguments:
        model: maps (B, S) int64 tokens to (B, S, V) logits; runs in evaluation mode and is given
            back in the mode it was in.
        tokens: (B, S) int64 prompts, S at least 1, on the model's device.
        max_tokens: how many tokens to add to each row.
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: draw among the k likeliest only; None: among all.
        generator: source of randomness on the model's device; None: torch's own.
        context: how many of the last tokens the model sees; None: all of them. Give the model's
            max_sequence_length.
        stop: a token that ends a row; what follows it in that row is this token again. When all
            rows have ended, so does the generation.
        on_token: called with each new (B,) tensor of tokens, to print as they come.

    Returns:
        (B, n) the new tokens alone, n at most max_tokens.

    Raises:
        SetpointError: an empty prompt, or settings that no token could be drawn with.
    """
    check_sampling(temperature, top_k)
    if tokens.shape[1] == 0:
        raise SetpointError("the prompt is empty: give at least one token to continue from")
    start = tokens.shape[1]
    ended = torch.zeros(tokens.shape[0], dtype=torch.bool, device=tokens.device)
    with evaluating(model), torch.no_grad():
        for _ in range(max_tokens):
            window = tokens if context is None else tokens[:, -context:]
            drawn = sample(
                model(window)[:, -1], temperature=temperature, top_k=top_k, generator=generator
            )
            if stop is not None:
                drawn = drawn.masked_fill(ended, stop)
                ended = drawn == stop
            tokens = torch.cat((tokens, drawn.unsqueeze(-1)), dim=-1)
            if on_token is not None:
                on_token(drawn)
            if stop is not None and bool(ended.all()):
                break
    return tokens[:, start:]
