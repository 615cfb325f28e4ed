"""What transformers' models keep of a text that grows, for generation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class TextCache:
    """A cache of transformers, and where the padding of its rows is.

    It is used as `setpoint.model.attention.cache.KeyValueCache`.

    Arguments:
        model: whose layers it is for.
    """

    def __init__(self, model: Any) -> None:
        from transformers import DynamicCache

        self.kept = DynamicCache(config=model.config)
        self.length = 0
        self._seen: Tensor | None = None

    def extend(self, tokens: Tensor, positions: Tensor | None) -> dict[str, Tensor]:
        """Append places of new tokens, before the layers append to their part.

        Arguments:
            tokens: (B, S).
            positions: (S,) or (B, S), negative for padding; None: they count on.

        Returns:
            (B, S) position ids; and (B, L) what is no padding, where there is any.
        """
        batch, count = tokens.shape
        if positions is None:
            positions = torch.arange(self.length, self.length + count, device=tokens.device)
        positions = positions.expand(batch, count)
        seen = positions >= 0
        if self._seen is None and self.length and not bool(seen.all()):
            self._seen = seen.new_ones(batch, self.length)
        if self._seen is not None:
            self._seen = torch.cat((self._seen, seen), dim=1)
        elif not self.length and not bool(seen.all()):
            self._seen = seen
        self.length += count
        given = {"position_ids": positions.clamp(min=0)}
        return given if self._seen is None else {**given, "attention_mask": self._seen.long()}

    def select(self, rows: Tensor) -> None:
        """Keep some rows of the batch, in the order given."""
        for layer in self.kept.layers:
            # Recurrent layers have one method for both.
            pick: Any = getattr(layer, "batch_select_indices", None) or layer.reorder_cache
            pick(rows)
        if self._seen is not None:
            self._seen = self._seen[rows]
