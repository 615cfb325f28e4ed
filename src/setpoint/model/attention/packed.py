"""Sequences behind each other without padding: the kernels of PyTorch and of flash-attn."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from setpoint.config import SetpointError
from setpoint.model.attention.layout import Layout


class Packed(NamedTuple):
    """Which tokens count, and where their sequences begin.

    Within a sequence the last query stands at the last key, as the kernels have it.

    Arguments:
        queries, keys: (T,) int64 places in the flattened batch that count; None: all.
        query_starts, key_starts: (sequences + 1,) int32 of the first token of each sequence, and
            the number of all.
        window: how many tokens back and ahead one sees, beside itself; -1: all.
    """

    queries: Tensor | None
    keys: Tensor | None
    query_starts: Tensor
    key_starts: Tensor
    longest_query: int
    longest_key: int
    window: tuple[int, int]


def pack(layout: Layout, window: int | None) -> Packed:
    """Find the sequences in a batch: rows, or the documents in them.

    Arguments:
        window: positions that one sees, itself included; None: all before it.

    Raises:
        SetpointError: a document is in pieces, or positions in a window have gaps.
    """
    sides = (-1 if window is None else window - 1, 0)
    if layout.documents is None and not layout.padded:
        if layout.positions is not None and window is not None:
            _need_consecutive(layout, window, torch.ones_like(layout.positions, dtype=torch.bool))
        rows = torch.arange(layout.batch + 1, dtype=torch.int32, device=layout.device)
        queries, keys = layout.queries, layout.keys
        return Packed(None, None, rows * queries, rows * keys, queries, keys, sides)
    shape = (layout.batch, layout.keys)
    counts = torch.ones(shape, dtype=torch.bool, device=layout.device)
    if layout.padded and layout.positions is not None:
        counts = (layout.positions >= 0).expand(shape)
    if layout.positions is not None and window is not None:
        _need_consecutive(layout, window, counts)
    return _of_sequences(layout, counts, sides)


def _of_sequences(layout: Layout, counts: Tensor, window: tuple[int, int]) -> Packed:
    """Cut the tokens that count wherever the row or the document changes."""
    device = layout.device
    keys = counts.flatten().nonzero().squeeze(1)
    rows = keys // layout.keys
    changes = rows[1:] != rows[:-1]
    if layout.documents is not None:
        documents = layout.documents.expand(counts.shape).flatten()[keys]
        changes = changes | (documents[1:] != documents[:-1])
        _need_whole(rows, documents, int(changes.sum()) + 1)
    sequence = torch.cat((torch.zeros(1, dtype=torch.int64, device=device), changes.cumsum(0)))
    total = int(sequence[-1]) + 1
    # The queries are the last slots of each row.
    slot = keys % layout.keys - (layout.keys - layout.queries)
    is_query = slot >= 0
    key_lengths = torch.bincount(sequence, minlength=total)
    query_lengths = torch.bincount(sequence[is_query], minlength=total)
    return Packed(
        queries=(rows * layout.queries + slot)[is_query] if layout.padded else None,
        keys=keys if layout.padded else None,
        query_starts=_starts(query_lengths),
        key_starts=_starts(key_lengths),
        longest_query=int(query_lengths.max()),
        longest_key=int(key_lengths.max()),
        window=window,
    )


def attend_packed(
    kernel: Callable[[Tensor, Tensor, Tensor], Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packed: Packed,
) -> Tensor:
    """Run a kernel on the tokens that count."""
    flat = [x.flatten(0, 1) for x in (query, key, value)]
    if packed.queries is None or packed.keys is None:
        return kernel(*flat).unflatten(0, query.shape[:2])
    mixed = kernel(flat[0][packed.queries], flat[1][packed.keys], flat[2][packed.keys])
    whole = mixed.new_zeros(flat[0].shape[0], *mixed.shape[1:])
    return whole.index_copy(0, packed.queries, mixed).unflatten(0, query.shape[:2])


def _starts(lengths: Tensor) -> Tensor:
    zero = torch.zeros(1, dtype=torch.int64, device=lengths.device)
    return torch.cat((zero, lengths.cumsum(0))).to(torch.int32)


def _need_whole(rows: Tensor, documents: Tensor, pieces: int) -> None:
    whole = torch.stack((rows, documents)).unique(dim=1).shape[1]
    if whole != pieces:
        raise SetpointError(
            f"model.attention_backend: the flash kernels need the tokens of a document in one "
            f"piece; {whole} documents are in {pieces}; use sdpa or flex"
        )


def _need_consecutive(layout: Layout, window: int, counts: Tensor) -> None:
    """The kernels' windows count tokens; ours go by position."""
    assert layout.positions is not None
    positions = layout.positions.expand(counts.shape)
    row, slot = counts.nonzero(as_tuple=True)
    kept = positions[row, slot]
    together = row[1:] == row[:-1]
    if layout.documents is not None:
        documents = layout.documents.expand(counts.shape)[row, slot]
        together = together & (documents[1:] == documents[:-1])
    if bool((together & (kept[1:] != kept[:-1] + 1)).any()):
        raise SetpointError(
            f"model.attention_backend: the flash kernels count a window of {window} in tokens, so "
            f"positions must follow on each other; use sdpa or flex"
        )


class Varlen:
    """`torch.nn.attention.varlen.varlen_attn`, on a GPU in bf16 or fp16.

    Arguments:
        function: that function; it can be replaced to be looked at.
    """

    def __init__(self, function: Any = None) -> None:
        if function is None:
            from torch.nn.attention.varlen import varlen_attn as function
        self.function = function
        # Before PyTorch 2.12 grouped queries were taken without asking.
        self.asks_for_groups = "enable_gqa" in inspect.signature(function).parameters

    def prepare_mask(self, layout: Layout, window: int | None) -> Packed:
        """Find the sequences.

        Arguments:
            window: positions that one sees, itself included; None: all before it.
        """
        return pack(layout, window)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Packed,
        *,
        scale: float | None = None,
        soft_cap: float | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        """Mix the values that each query sees.

        Arguments:
            scale: of the products; None: 1 / sqrt(D).
        """
        assert soft_cap is None
        assert dropout == 0.0
        options: dict[str, Any] = {"scale": scale, "window_size": mask.window}
        if self.asks_for_groups:
            options["enable_gqa"] = query.shape[2] != key.shape[2]

        def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            result = self.function(
                query,
                key,
                value,
                mask.query_starts,
                mask.key_starts,
                mask.longest_query,
                mask.longest_key,
                **options,
            )
            assert isinstance(result, torch.Tensor)
            return result

        return attend_packed(kernel, query, key, value, mask)


class Flash:
    """FlashAttention 2 (Dao, 2023) by its own package, on a GPU in bf16 or fp16.

    Arguments:
        function: `flash_attn.flash_attn_varlen_func`; it can be replaced to be looked at.
    """

    def __init__(self, function: Any = None) -> None:
        if function is None:
            from flash_attn import (  # pyright: ignore[reportMissingImports]
                flash_attn_varlen_func as function,
            )
        self.function = function

    def prepare_mask(self, layout: Layout, window: int | None) -> Packed:
        """Find the sequences.

        Arguments:
            window: positions that one sees, itself included; None: all before it.
        """
        return pack(layout, window)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Packed,
        *,
        scale: float | None = None,
        soft_cap: float | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        """Mix the values that each query sees.

        Arguments:
            scale: of the products; None: 1 / sqrt(D).
        """

        def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return self.function(
                query,
                key,
                value,
                mask.query_starts,
                mask.key_starts,
                mask.longest_query,
                mask.longest_key,
                dropout_p=dropout,
                softmax_scale=scale,
                causal=True,
                window_size=mask.window,
                # The package's way to say: no cap.
                softcap=0.0 if soft_cap is None else soft_cap,
                deterministic=torch.are_deterministic_algorithms_enabled(),
            )

        return attend_packed(kernel, query, key, value, mask)
