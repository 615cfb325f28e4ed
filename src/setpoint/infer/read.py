"""Ask a model what comes after each of several texts."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from setpoint.infer.distributed import ModelRunner

Texts = Sequence[Sequence[int]]
"""The tokens of each row so far."""


class Reader(Protocol):
    """Gives the logits after texts that grow by a token from call to call."""

    def __call__(self, texts: Texts) -> Tensor | None:
        """The logits of the next tokens; None on ranks without the last layers.

        Arguments:
            texts: the tokens of each row, one more than at the call before.
        """
        ...

    def passes(self, texts: Texts) -> int:
        """How many passes through the model a call makes."""
        ...

    def keep(self, places: Sequence[int]) -> None:
        """Leave rows out from the next call on."""
        ...


def reader_of(runner: ModelRunner, context: int | None, cache: bool) -> Reader:
    """The cheapest way to read a model.

    Arguments:
        context: how many of the last tokens it sees; None: all.
    """
    whole = Whole(runner, context)
    make = getattr(runner.model, "make_cache", None) if cache else None
    can_keep = make is not None and make() is not None
    return Cached(runner, context, whole) if can_keep else whole


class Whole:
    """Reads the whole context again for each token.

    Rows of different lengths are padded where the model says `pads_left = True`; otherwise those of
    one length are read together.

    Arguments:
        context: how many of the last tokens the model sees; None: all.
    """

    def __init__(self, runner: ModelRunner, context: int | None) -> None:
        self.runner = runner
        self.context = context
        self.padded = getattr(runner.model, "pads_left", False) is True

    def __call__(self, texts: Texts) -> Tensor | None:
        """The logits of the next tokens; see `Reader`."""
        windows, device = self._windows(texts), self.runner.device
        if self.padded:
            tokens, positions = left_padded(windows, device)
            given = {} if positions is None else {"positions": positions}
            return self.runner.logits(tokens, last=True, **given)
        found: dict[int, Tensor] = {}
        for length in _lengths(windows):
            rows = [row for row, window in enumerate(windows) if len(window) == length]
            tokens = torch.tensor([windows[row] for row in rows], device=device)
            logits = self.runner.logits(tokens, last=True)
            if logits is not None:
                found.update(zip(rows, logits, strict=True))
        return torch.stack([found[row] for row in range(len(windows))]) if found else None

    def passes(self, texts: Texts) -> int:
        """See `Reader`."""
        return 1 if self.padded else len(_lengths(self._windows(texts)))

    def keep(self, places: Sequence[int]) -> None:
        """Do nothing, since nothing is kept from call to call."""

    def _windows(self, texts: Texts) -> list[Sequence[int]]:
        return [text if self.context is None else text[-self.context :] for text in texts]


def _lengths(windows: Texts) -> list[int]:
    return sorted({len(window) for window in windows})


class Cached:
    """Keeps keys and values, and so reads one token of each row from the second call on.

    A text that is longer than the context moves on under it: every token gets another position,
    so that what was kept is worth nothing, and the rest is read as `Whole` does.

    Arguments:
        context: how many of the last tokens the model sees; None: all.
    """

    def __init__(self, runner: ModelRunner, context: int | None, whole: Whole) -> None:
        self.runner = runner
        self.context = context
        self.whole = whole
        self.cache: Any = None
        self._counts = False  # whether positions differ from row to row

    def __call__(self, texts: Texts) -> Tensor | None:
        """The logits of the next tokens; see `Reader`."""
        if self.context is not None and max(map(len, texts)) > self.context:
            self.cache = None
            return self.whole(texts)
        device = self.runner.device
        # The padding of a long row that has left may fill what a shorter one still needs.
        if self.cache is None or self.cache.length == self.context:
            model: Any = self.runner.model
            self.cache = model.make_cache()
            tokens, positions = left_padded(texts, device)
            self._counts = positions is not None
        else:
            tokens = torch.tensor([[text[-1]] for text in texts], device=device)
            # Without padding the cache counts by itself, which attention makes the most of.
            positions = None
            if self._counts:
                positions = torch.tensor([[len(text) - 1] for text in texts], device=device)
        return self.runner.logits(tokens, last=True, positions=positions, cache=self.cache)

    def passes(self, texts: Texts) -> int:
        """See `Reader`."""
        del texts
        return 1

    def keep(self, places: Sequence[int]) -> None:
        """Leave rows out from the next call on."""
        if self.cache is not None:
            self.cache.select(torch.tensor(places, device=self.runner.device))


def left_padded(rows: Texts, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Rows of different lengths side by side, all ending in the last column.

    Returns:
        (B, S) tokens; and (B, S) positions, negative where there is padding, or None if all rows
        are of one length.
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
