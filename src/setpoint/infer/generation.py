"""Token-by-token generation: forward passes, filtering of logits, sampling."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from setpoint.config import RunError, SetpointError
from setpoint.infer.distributed import ModelRunner
from setpoint.model.build import evaluating

OnToken = Callable[[int, int], bool]
"""Called with the row and each new token; True ends the row after it."""


@dataclass(slots=True)
class Continuation:
    """Tokens generated for one prompt.

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

    Prompts of different lengths share a batch, but each row gets the same result as alone: padding
    is masked, and each row draws from its own generator. Rows that have ended leave the batch.

    Ranks with parts of one model get the same prompts; ranks that must make the same number of
    passes may get different ones, or none.

    Arguments:
        model: maps (B, S) int64 tokens to (B, S, V) logits; runs in evaluation mode, and its mode
            is restored.
        max_tokens: maximum number of new tokens per row.
        sampling: sampling settings; None: sample from the plain softmax.
        generators: one per row, on the CPU; None: torch's global one.
        context: maximum number of tokens that the model sees, usually its max_sequence_length;
            None: unlimited.
        vocab_size: only tokens below it are drawn; None: all logits.
        stop: tokens that end a row; exempt from the repetition penalty.
        cache: whether to cache keys and values if the model can, so that a token costs one position
            instead of the whole context. Results are the same.

    Raises:
        SetpointError: a prompt is empty.
    """
    sampling = sampling or Sampling()
    runner = model if isinstance(model, ModelRunner) else ModelRunner(model)
    for number, prompt in enumerate(prompts):
        if not len(prompt):
            subject = f"prompt {number} is empty" if len(prompts) > 1 else "the prompt is empty"
            raise SetpointError(f"{subject}: give at least one token to continue from")
    done = [Continuation() for _ in prompts]
    rows = list(range(len(prompts)))  # rows that have not ended
    texts = [list(prompt) for prompt in prompts]
    stops = frozenset(stop)
    with evaluating(runner.model), torch.no_grad():
        read = reader_of(runner, context, cache)
        for _ in range(max_tokens):
            current = [texts[row] for row in rows]
            passes = read.passes(current) if rows else 0
            most = runner.most_passes(passes)
            if not most:
                break
            logits = read(current) if rows else None
            runner.idle(most - passes)
            if not rows:
                continue
            drawn: Tensor | None = None
            if logits is not None:
                logits = logits[:, :vocab_size]
                used = None
                if sampling.repetition_penalty != 1:
                    used = _seen(current, stops, logits)
                random = None if generators is None else [generators[row] for row in rows]
                drawn = sample(logits, sampling, generators=random, seen=used)
            going: list[int] = []  # positions in the batch
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
    """(B, V) tokens of each row, without stop tokens."""
    used = torch.zeros(logits.shape, dtype=torch.bool)
    for row, text in enumerate(texts):
        tokens = [token for token in set(text) if token not in stops and token < logits.shape[1]]
        used[row, tokens] = True
    return used.to(logits.device)


Texts = Sequence[Sequence[int]]
"""All tokens of each row so far."""


class PromptReader(Protocol):
    """Computes next-token logits for texts that grow by one token per call."""

    def __call__(self, texts: Texts) -> Tensor | None:
        """Next-token logits; None on ranks without the last layers.

        Arguments:
            texts: tokens of each row, one more than in the previous call.
        """
        ...

    def passes(self, texts: Texts) -> int:
        """Number of forward passes made by a call."""
        ...

    def keep(self, places: Sequence[int]) -> None:
        """Keep only some rows, starting with the next call."""
        ...


def reader_of(runner: ModelRunner, context: int | None, cache: bool) -> PromptReader:
    """The cheapest reader for a model.

    Arguments:
        context: maximum number of tokens that the model sees; None: unlimited.
    """
    uncached = UncachedReader(runner, context)
    make = getattr(runner.model, "make_cache", None) if cache else None
    can_keep = make is not None and make() is not None
    return CachedReader(runner, context, uncached) if can_keep else uncached


class UncachedReader:
    """Processes the whole context for each token.

    Rows of different lengths are padded if the model has `pads_left = True`; otherwise, rows of
    equal length are processed together.

    Arguments:
        context: maximum number of tokens that the model sees; None: unlimited.
    """

    def __init__(self, runner: ModelRunner, context: int | None) -> None:
        self.runner = runner
        self.context = context
        self.padded = getattr(runner.model, "pads_left", False) is True

    def __call__(self, texts: Texts) -> Tensor | None:
        """Next-token logits; see `PromptReader`."""
        windows, device = self._windows(texts), self.runner.device
        if self.padded:
            tokens, positions = left_padded(windows, device)
            given = {} if positions is None else {"positions": positions}
            return self.runner.logits(tokens, last=True, **given)
        by_row: dict[int, Tensor] = {}
        for length in _lengths(windows):
            rows = [row for row, window in enumerate(windows) if len(window) == length]
            tokens = torch.tensor([windows[row] for row in rows], device=device)
            logits = self.runner.logits(tokens, last=True)
            if logits is not None:
                by_row.update(zip(rows, logits, strict=True))
        return torch.stack([by_row[row] for row in range(len(windows))]) if by_row else None

    def passes(self, texts: Texts) -> int:
        """See `PromptReader`."""
        return 1 if self.padded else len(_lengths(self._windows(texts)))

    def keep(self, places: Sequence[int]) -> None:
        """Do nothing, because there is no state."""

    def _windows(self, texts: Texts) -> list[Sequence[int]]:
        return [text if self.context is None else text[-self.context :] for text in texts]


def _lengths(windows: Texts) -> list[int]:
    return sorted({len(window) for window in windows})


class CachedReader:
    """Caches keys and values, so that after the first call only one token per row is processed.

    Once a text exceeds the context, the context window shifts. This changes the positions of all
    tokens and invalidates the cache, so the rest is processed as by `UncachedReader`.

    Arguments:
        context: maximum number of tokens that the model sees; None: unlimited.
    """

    def __init__(self, runner: ModelRunner, context: int | None, uncached: UncachedReader) -> None:
        self.runner = runner
        self.context = context
        self.uncached = uncached
        self.cache: Any = None
        self._counts = False  # whether positions differ from row to row

    def __call__(self, texts: Texts) -> Tensor | None:
        """Next-token logits; see `PromptReader`."""
        if self.context is not None and max(map(len, texts)) > self.context:
            self.cache = None
            return self.uncached(texts)
        device = self.runner.device
        # The padding of a longer row that has ended may fill the context of a shorter one.
        if self.cache is None or self.cache.length == self.context:
            model: Any = self.runner.model
            self.cache = model.make_cache()
            tokens, positions = left_padded(texts, device)
            self._counts = positions is not None
        else:
            tokens = torch.tensor([[text[-1]] for text in texts], device=device)
            # Without padding the cache counts positions itself, with which attention is fastest.
            positions = None
            if self._counts:
                positions = torch.tensor([[len(text) - 1] for text in texts], device=device)
        return self.runner.logits(tokens, last=True, positions=positions, cache=self.cache)

    def passes(self, texts: Texts) -> int:
        """See `PromptReader`."""
        del texts
        return 1

    def keep(self, places: Sequence[int]) -> None:
        """Keep only some rows, starting with the next call."""
        if self.cache is not None:
            self.cache.select(torch.tensor(places, device=self.runner.device))


def left_padded(rows: Texts, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Batch of rows with different lengths, aligned at the end.

    Returns:
        (B, S) tokens, and (B, S) positions, negative for padding, or None if all rows have the same
        length.
    """
    lengths = torch.tensor([len(row) for row in rows])
    longest = int(lengths.max())
    tokens = torch.zeros(len(rows), longest, dtype=torch.int64)
    for place, row in enumerate(rows):
        tokens[place, longest - len(row) :] = torch.tensor(row, dtype=torch.int64)
    if bool((lengths == longest).all()):
        return tokens.to(device), None
    positions = torch.arange(longest) - (longest - lengths)[:, None]
    return tokens.to(device), positions.to(device)


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings; filters are applied in the order listed.

    Arguments:
        repetition_penalty: above 1, seen tokens become less likely; 1 has no effect.
        temperature: divides the logits; 0 is greedy.
        top_k: sample from the k most likely tokens; None: all tokens.
        top_p: sample from the smallest set of most likely tokens with this total probability; None:
            all tokens.
        min_p: sample from tokens at least this fraction as probable as the most probable one; None:
            all tokens.
    """

    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None


def sample(
    logits: Tensor,
    sampling: Sampling,
    *,
    generators: Sequence[torch.Generator] | None = None,
    seen: Tensor | None = None,
) -> Tensor:
    """Sample one token for each row of logits.

    A row consumes exactly one number from its generator, whatever the filters, so that its samples
    do not depend on other rows.

    Arguments:
        generators: one per row, on the CPU; None: torch's global one.
        seen: (B, V) bool, tokens to which the repetition penalty applies; None: no tokens.

    Raises:
        RunError: logits are NaN, as from damaged or diverged weights.
    """
    logits = logits.float()
    if logits.isnan().any():
        raise RunError(
            "the logits of the model are NaN, so no token can be chosen: its weights are damaged "
            "or diverged, or too large for the dtype"
        )
    if seen is not None and sampling.repetition_penalty != 1:
        logits = repetition(logits, seen, sampling.repetition_penalty)
    if sampling.temperature == 0:
        return logits.argmax(dim=-1)
    logits = scaled(logits, sampling.temperature)
    if sampling.top_k is not None:
        logits = top_k(logits, sampling.top_k)
    if sampling.top_p is not None:
        logits = top_p(logits, sampling.top_p)
    if sampling.min_p is not None:
        logits = min_p(logits, sampling.min_p)
    # The token at which the cumulative probability exceeds a number drawn from [0, 1).
    reached = logits.double().softmax(dim=-1).cumsum(dim=-1)
    drawn = _uniform(len(logits), generators).to(logits.device).unsqueeze(-1)
    tokens = torch.searchsorted(reached, drawn * reached[:, -1:], right=True).squeeze(-1)
    # Rounding can leave the last sum at the number itself; tokens of probability 0 are never drawn.
    return tokens.minimum(_last_possible(logits))


def _uniform(count: int, generators: Sequence[torch.Generator] | None) -> Tensor:
    """(count,) fp64 numbers in [0, 1), drawn on the CPU, the same on every machine."""
    if generators is None:
        return torch.rand(count, dtype=torch.float64)
    drawn = [torch.rand(1, dtype=torch.float64, generator=generator) for generator in generators]
    return torch.cat(drawn) if drawn else torch.empty(0, dtype=torch.float64)


def _last_possible(logits: Tensor) -> Tensor:
    """(B,) highest token index that can be drawn."""
    possible = logits > EXCLUDED
    return logits.shape[-1] - 1 - possible.flip(-1).int().argmax(dim=-1)


EXCLUDED = float("-inf")
"""Logit of an excluded token; each filter maps (B, V) fp32 logits to such. Filters are applied in
the order of their definition, that of Hugging Face's `generate`."""


def repetition(logits: Tensor, used: Tensor, penalty: float) -> Tensor:
    """Make tokens that occurred before less likely (CTRL, Keskar et al., 2019).

    Arguments:
        used: (B, V) bool, tokens of the prompt and of the generated text.
        penalty: divides positive logits of these tokens, and multiplies negative ones; 1 has no
            effect, below 1 they become more likely.
    """
    return torch.where(used, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def scaled(logits: Tensor, temperature: float) -> Tensor:
    """Divide by the temperature, after shifting the maximum of each row to 0.

    Arguments:
        temperature: above 0; without the shift a tiny one would overflow.
    """
    return (logits - logits.amax(dim=-1, keepdim=True)) / temperature


def top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k most likely tokens, and any tied with the k-th.

    Arguments:
        k: at least 1; V or more keeps all.
    """
    least = logits.topk(min(k, logits.shape[-1]), dim=-1).values[:, -1:]
    return logits.masked_fill(logits < least, EXCLUDED)


def top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the most likely tokens up to a total probability p (nucleus, Holtzman et al., 2020).

    Arguments:
        p: in (0, 1]; of equally likely tokens at the edge, those with higher indices are kept
            first.
    """
    # From the least likely up: tokens up to a cumulative probability of 1 - p are not needed.
    ordered, places = logits.sort(dim=-1, stable=True)
    surplus = ordered.softmax(dim=-1).cumsum(dim=-1) <= 1 - p
    surplus[:, -1] = False  # rounding must not remove the likeliest token
    return logits.masked_fill(surplus.scatter(-1, places, surplus), EXCLUDED)


def min_p(logits: Tensor, share: float) -> Tensor:
    """Keep tokens at least `share` times as likely as the best one (min-p, Nguyen et al., 2024)."""
    probabilities = logits.softmax(dim=-1)
    least = share * probabilities.amax(dim=-1, keepdim=True)
    return logits.masked_fill(probabilities < least, EXCLUDED)
