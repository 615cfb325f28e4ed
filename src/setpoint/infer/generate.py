"""Generate continuations, token by token."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from setpoint.config import SetpointError
from setpoint.infer.distributed import ModelRunner
from setpoint.infer.read import reader_of
from setpoint.infer.sample import Sampling, sample
from setpoint.model.layers import evaluating

OnToken = Callable[[int, int], bool]
"""Told of each new token: the row and the token. True ends the row after it."""


@dataclass(slots=True)
class Continuation:
    """What was added to one prompt.

    Arguments:
        tokens: the new tokens, without the stop token.
        finish: `"stop"` at a stop token, `"ended"` by `on_token`, or `"length"`.
        stop: the stop token.
    """

    tokens: list[int] = field(default_factory=list)
    finish: str = "length"
    stop: int | None = None


def generate(
    model: nn.Module | ModelRunner,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    sampling: Sampling | None = None,
    generators: Sequence[torch.Generator] | None = None,
    context: int | None = None,
    vocab_size: int | None = None,
    stop: Collection[int] = (),
    cache: bool = True,
    on_token: OnToken | None = None,
) -> list[Continuation]:
    """Continue each prompt by sampling from the model.

    Prompts of different lengths go side by side, and each row is what it would be alone: padding
    is masked, and a row draws from its own generator. A row that has ended leaves the
    batch.

    Ranks that hold one model together are given the same prompts; those that must make as many
    passes as each other may be given different ones, or none.

    Arguments:
        model: maps (B, S) int64 tokens to (B, S, V) logits; runs in evaluation mode and is given
            back in the mode it was in.
        max_tokens: how many tokens to add to each row at most.
        sampling: how tokens are drawn; None: from the softmax as it is.
        generators: one for each row, on the CPU; None: torch's own for all.
        context: how many of the last tokens the model sees; None: all of them. Give the model's
            max_sequence_length.
        vocab_size: only the first so many tokens are drawn; None: all that the model knows.
        stop: tokens that end a row. The repetition penalty leaves them alone.
        cache: keep keys and values, where the model can, so that a token costs one position and
            not the whole context. What is generated is the same.

    Raises:
        SetpointError: an empty prompt.
    """
    sampling = sampling or Sampling()
    runner = model if isinstance(model, ModelRunner) else ModelRunner(model)
    for number, prompt in enumerate(prompts):
        if not len(prompt):
            which = f"prompt {number} is empty" if len(prompts) > 1 else "the prompt is empty"
            raise SetpointError(f"{which}: give at least one token to continue from")
    done = [Continuation() for _ in prompts]
    rows = list(range(len(prompts)))  # those that have not ended
    texts = [list(prompt) for prompt in prompts]
    stops = frozenset(stop)
    with evaluating(runner.model), torch.no_grad():
        read = reader_of(runner, context, cache)
        for _ in range(max_tokens):
            current = [texts[row] for row in rows]
            own = read.passes(current) if rows else 0
            most = runner.most_passes(own)
            if not most:
                break
            logits = read(current) if rows else None
            runner.idle(most - own)
            if not rows:
                continue
            drawn: Tensor | None = None
            if logits is not None:
                logits = logits[:, :vocab_size]
                seen = None
                if sampling.repetition_penalty != 1:
                    seen = _seen(current, stops, logits)
                random = None if generators is None else [generators[row] for row in rows]
                drawn = sample(logits, sampling, generators=random, seen=seen)
            going: list[int] = []  # places in the batch
            tokens = runner.agree(drawn, len(rows))
            for place, (row, token) in enumerate(zip(rows, tokens, strict=True)):
                if token in stops:
                    done[row].finish, done[row].stop = "stop", token
                    continue
                texts[row].append(token)
                done[row].tokens.append(token)
                if on_token is not None and on_token(row, token):
                    done[row].finish = "ended"
                    continue
                going.append(place)
            if len(going) < len(rows):
                if going:
                    read.keep(going)
                rows = [rows[place] for place in going]
    return done


def _seen(texts: list[list[int]], stops: Collection[int], logits: Tensor) -> Tensor:
    """(B, V) which tokens each row holds, stop tokens aside."""
    seen = torch.zeros(logits.shape, dtype=torch.bool)
    for row, text in enumerate(texts):
        tokens = [token for token in set(text) if token not in stops and token < logits.shape[1]]
        seen[row, tokens] = True
    return seen.to(logits.device)
