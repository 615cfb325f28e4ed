"""Attention mask of one forward pass: which keys each query attends to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from setpoint.shapes.batch import Lengths


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of queries and keys; the queries are the last of the keys.

    Arguments:
        keys: L, positions in each row, those in the cache included.
        positions: (1, L) or (B, L) integers of the keys; None: they count up, slot by slot.
        padded: whether positions may be negative, which marks padding.
        documents: (1, L) or (B, L) integers; None: each row is one document.
        lengths: of the documents, or of what is before padding at the end of rows, where the host
            knows them and there are as many queries as keys.
    """

    queries: int
    keys: int
    batch: int
    device: torch.device
    positions: Tensor | None = None
    padded: bool = False
    documents: Tensor | None = None
    lengths: Lengths | None = None

    def is_causal(self, window: int | None) -> bool:
        """Whether each position sees itself and all before it, in rows of queries alone.

        Returns:
            True if nothing else restricts what is seen.
        """
        return self.queries == self.keys and not self.is_masked(window)

    def is_last(self, window: int | None) -> bool:
        """Whether there is one query a row, and it sees all keys.

        Arguments:
            window: positions that one sees; None: all before it.
        """
        return self.queries == 1 and not self.is_masked(window)

    def is_masked(self, window: int | None) -> bool:
        """Whether more than the order of the slots restricts what a token sees.

        Where lengths are known padding is at the end, and order alone hides it.
        """
        narrow = window is not None and (
            window < self.keys if self.lengths is not None or self.positions is None else True
        )
        return narrow or self.documents is not None or (self.padded and self.lengths is None)

    def without_first(self, count: int) -> Layout:
        """Leave out the first keys, which no query sees any more."""
        if count == 0:
            return self
        return replace(
            self,
            keys=self.keys - count,
            positions=None if self.positions is None else self.positions[:, count:],
            documents=None if self.documents is None else self.documents[:, count:],
            lengths=None,
        )


def visible(
    layout: Layout, window: int | None, queries: slice | None = None, keys: slice = slice(None)
) -> Tensor:
    """The mask: True where the query sees the key.

    It does if the key is no padding, in the same document, at or before the query, and less than
    `window` positions before it. Order is that of the slots, so that positions which start
    anew in each document tell nothing of what comes later; distance is that of the positions, so
    that padding in between takes no room in the window. Every query sees itself, padding
    too: a row without a key would have no softmax.

    Arguments:
        window: positions that one sees, itself included; None: all before it.
        queries, keys: slots among those of the keys; None: the last, which are the queries; all.

    Returns:
        (1 or B, 1, queries, keys) bool.
    """
    if queries is None:
        queries = slice(layout.keys - layout.queries, None)
    slots = torch.arange(layout.keys, device=layout.device)[None]
    seen = slots[:, None, keys] <= slots[:, queries, None]
    positions = slots if layout.positions is None else layout.positions
    if window is not None:
        seen = seen & (positions[:, queries, None] - positions[:, None, keys] < window)
    if layout.documents is not None:
        documents = layout.documents
        seen = seen & (documents[:, queries, None] == documents[:, None, keys])
    if layout.padded:
        seen = seen & (positions >= 0)[:, None, keys]
        seen = seen | (slots[:, None, keys] == slots[:, queries, None])
    return seen[:, None]
