"""Ask a model what comes after each of several texts."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from setpoint.model.attention.cache import KeyValueCache
from setpoint.model.transformer import Transformer
from setpoint.shapes.outcome import Projection, supports_head

Texts = Sequence[Sequence[int]]
"""The tokens of each row so far."""


class Reader(Protocol):
    """Gives the logits after texts that grow by a token from call to call."""

    def __call__(self, texts: Texts) -> Tensor:
        """The logits of the next tokens.

        Arguments:
            texts: the tokens of each row, one more than at the call before.
        """
        ...

    def keep(self, places: Sequence[int]) -> None:
        """Leave rows out from the next call on."""
        ...


def reader_of(model: nn.Module, context: int | None, cache: bool) -> Reader:
    """The cheapest way to read a model.

    Arguments:
        model: any module that maps tokens to logits.
        context: how many of the last tokens it sees; None: all.
    """
    whole = Whole(model, context)
    return Cached(model, context, whole) if cache and isinstance(model, Transformer) else whole


class Whole:
    """Reads the whole context again for each token.

    Rows of different lengths are padded where the model is our own; otherwise those of one length
    are read together.

    Arguments:
        model: any module that maps tokens to logits.
        context: how many of the last tokens it sees; None: all.
    """

    def __init__(self, model: nn.Module, context: int | None) -> None:
        self.model = model
        self.context = context
        # Negative positions as padding are our own custom.
        self.padded = isinstance(model, Transformer)
        self.device = device_of(model)

    def __call__(self, texts: Texts) -> Tensor:
        """The logits of the next tokens; see `Reader`."""
        windows = [text if self.context is None else text[-self.context :] for text in texts]
        if self.padded:
            tokens, positions = left_padded(windows, self.device)
            given = {} if positions is None else {"positions": positions}
            return last_logits(self.model, tokens, **given)
        found: dict[int, Tensor] = {}
        for length in {len(window) for window in windows}:
            rows = [row for row, window in enumerate(windows) if len(window) == length]
            tokens = torch.tensor([windows[row] for row in rows], device=self.device)
            found.update(zip(rows, last_logits(self.model, tokens), strict=True))
        return torch.stack([found[row] for row in range(len(windows))])

    def keep(self, places: Sequence[int]) -> None:
        """Do nothing, since nothing is kept from call to call."""


class Cached:
    """Keeps keys and values, and so reads one token of each row from the second call on.

    A text that is longer than the context moves on under it: every token gets another position,
    so that what was kept is worth nothing, and the rest is read as `Whole` does.

    Arguments:
        context: how many of the last tokens it sees; None: all.
    """

    def __init__(self, model: nn.Module, context: int | None, whole: Whole) -> None:
        self.model = model
        self.context = context
        self.whole = whole
        self.cache: KeyValueCache | None = None
        self._counts = False  # whether positions differ from row to row

    def __call__(self, texts: Texts) -> Tensor:
        """The logits of the next tokens; see `Reader`."""
        if self.context is not None and max(map(len, texts)) > self.context:
            self.cache = None
            return self.whole(texts)
        # The padding of a long row that has left may fill what a shorter one still needs.
        if self.cache is None or self.cache.length == self.context:
            self.cache = KeyValueCache()
            tokens, positions = left_padded(texts, self.whole.device)
            self._counts = positions is not None
            return last_logits(self.model, tokens, positions=positions, cache=self.cache)
        tokens = torch.tensor([[text[-1]] for text in texts], device=self.whole.device)
        # Without padding the cache counts by itself, which attention makes the most of.
        positions = None
        if self._counts:
            positions = torch.tensor([[len(text) - 1] for text in texts], device=tokens.device)
        return last_logits(self.model, tokens, positions=positions, cache=self.cache)

    def keep(self, places: Sequence[int]) -> None:
        """Leave rows out from the next call on."""
        if self.cache is not None:
            self.cache.select(torch.tensor(places, device=self.whole.device))


def last_logits(model: nn.Module, tokens: Tensor, **given: Any) -> Tensor:
    """The logits after the last token; only those are computed where the model can."""
    if not supports_head(model):
        return model(tokens, **given)[:, -1]

    def head(hidden: Tensor, projection: Projection) -> Tensor:
        return projection.logits(hidden[:, -1])

    return model(tokens, **given, head=head).result


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


def device_of(model: nn.Module) -> torch.device:
    """Where a model lies.

    Returns:
        the device of its first parameter; the CPU if it has none.
    """
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
