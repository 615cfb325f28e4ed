"""Key-value cache for generation."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from setpoint.model.attention.backends import RowLayout
from setpoint.model.attention.config import Kind

T = TypeVar("T", int, Tensor)
ROOM = 64
"""Smallest number of slots of a layer."""


class KeyValueCache:
    """Positions, documents, and each layer's keys and values of all tokens so far.

    Each call of the model appends its tokens:

        cache = KeyValueCache()
        with torch.inference_mode():
            model(prompt, cache=cache)
            model(next_token, cache=cache)

    Layers with a sliding window or chunks drop tokens that later positions cannot see.
    """

    def __init__(self) -> None:
        self.length = 0
        self.rows: int | None = None
        self.layers: dict[int, LayerCache] = {}
        self._positions: Tensor | None = None
        self._documents: Tensor | None = None
        self._padded = False
        self._trimmed: dict[Kind, int] = {}

    def extend(
        self,
        shape: tuple[int, int],
        device: torch.device,
        positions: Tensor | None,
        documents: Tensor | None,
    ) -> RowLayout:
        """Append positions of new tokens, before the layers append keys and values.

        Arguments:
            positions: (S,) or (B, S), negative for padding; None: the next ones.
            documents: (B, S); None: each row is one document.

        Raises:
            ValueError: the number of rows changed, or only some calls have documents.
        """
        batch, count = shape
        if self.rows not in (None, batch):
            raise ValueError(f"the cache holds {self.rows} rows; got {batch}")
        if self.length and (documents is None) != (self._documents is None):
            raise ValueError(
                "documents must be given with all calls that fill a cache, or with none"
            )
        if positions is not None or self._positions is not None:
            self._positions = _join(
                _counted(self.length, device) if self._positions is None else self._positions,
                _counted(count, device, self.length) if positions is None else positions,
            )
            self._padded = self._padded or (positions is not None and positions.dim() == 2)
        if documents is not None:
            before = self._documents
            self._documents = documents if before is None else _join(before, documents)
        self.rows, self.length = batch, self.length + count
        return RowLayout(
            queries=count,
            keys=self.length,
            batch=batch,
            device=device,
            positions=self._positions,
            padded=self._padded,
            documents=self._documents,
        )

    def trim(self, layout: RowLayout, kind: Kind, size: int) -> int:
        """Find the first slot visible to a query of some layers, now or later.

        Arguments:
            size: size of the window or of chunks.

        Raises:
            ValueError: positions went back to trimmed slots.
        """
        old = layout.keys - layout.queries
        if layout.positions is None:
            first = max(0, _first_visible(old, kind, size))
        else:
            first = _first_in_reach(layout.positions, old, kind, size)
        if first < self._trimmed.get(kind, 0):
            name = "window" if kind == "sliding" else "chunk"
            raise ValueError(
                f"positions go back beyond the {name} of {size}; start with an empty cache"
            )
        self._trimmed[kind] = first
        return first

    def append(self, layer: int, tensors: tuple[Tensor, ...], first: int) -> tuple[Tensor, ...]:
        """Append a layer's tensors for new tokens; slots before `first` are dropped.

        Raises:
            ValueError: gradients are recorded, which could not reach earlier calls.
        """
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            raise ValueError(
                "a cache is for inference; call the model in torch.inference_mode() or no_grad()"
            )
        if layer not in self.layers:
            self.layers[layer] = LayerCache(first)
        return self.layers[layer].append(tensors, first)

    def select(self, rows: Tensor) -> None:
        """Select and reorder rows of the batch."""
        if self._positions is not None and self._positions.shape[0] > 1:
            self._positions = self._positions[rows]
        if self._documents is not None and self._documents.shape[0] > 1:
            self._documents = self._documents[rows]
        for entry in self.layers.values():
            entry.select(rows)
        self.rows = int(rows.sum()) if rows.dtype == torch.bool else rows.shape[0]


class LayerCache:
    """Tensors of one layer, in memory with room for growth; they begin at slot `first`."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._begin = 0
        self._end = 0
        self._memory: tuple[Tensor, ...] = ()

    @property
    def room(self) -> int:
        """Number of slots in memory."""
        return self._memory[0].shape[1] if self._memory else 0

    def append(self, tensors: tuple[Tensor, ...], first: int) -> tuple[Tensor, ...]:
        """Drop slots before `first`, and append new ones."""
        self._begin += first - self._first
        self._first = first
        count = tensors[0].shape[1]
        if self._end + count > self.room:
            self._move(tensors, count)
        for memory, new in zip(self._memory, tensors, strict=True):
            memory[:, self._end : self._end + count] = new
        self._end += count
        return tuple(memory[:, self._begin : self._end] for memory in self._memory)

    def select(self, rows: Tensor) -> None:
        """Select rows of the batch."""
        self._memory = tuple(memory[rows] for memory in self._memory)

    def _move(self, like: tuple[Tensor, ...], count: int) -> None:
        """Move to new memory that is half as large again."""
        kept = self._end - self._begin
        room = max(ROOM, (kept + count) * 3 // 2)
        memory = tuple(new.new_empty(new.shape[0], room, *new.shape[2:]) for new in like)
        for old, new in zip(self._memory, memory, strict=False):
            new[:, :kept] = old[:, self._begin : self._end]
        self._memory, self._begin, self._end = memory, 0, kept


def _counted(count: int, device: torch.device, start: int = 0) -> Tensor:
    return torch.arange(start, start + count, device=device)[None]


def _join(before: Tensor, after: Tensor) -> Tensor:
    """Append (S,) or (B, S) to (1, L) or (B, L)."""
    after = torch.atleast_2d(after)
    rows = max(before.shape[0], after.shape[0])
    return torch.cat((before.expand(rows, -1), after.expand(rows, -1)), dim=1)


def _first_visible(position: T, kind: Kind, size: int) -> T:
    """First position that a query sees through a window or within its chunk."""
    return position - size + 1 if kind == "sliding" else position // size * size


def _first_in_reach(positions: Tensor, old: int, kind: Kind, size: int) -> int:
    """The first old slot visible to a row's next position or a later one."""
    before, new = positions[:, :old], positions[:, old:]
    # Padding sees nothing; rows of padding see only what their last token saw.
    earliest = new.where(new >= 0, torch.iinfo(new.dtype).max).amin(dim=1, keepdim=True)
    last = before.amax(dim=1, keepdim=True) if old else earliest
    earliest = earliest.where((new >= 0).any(dim=1, keepdim=True), last + 1)
    reached = ((before >= 0) & (before >= _first_visible(earliest, kind, size))).any(dim=0)
    return int(reached.int().argmax()) if bool(reached.any()) else old
