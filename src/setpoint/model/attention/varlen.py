"""Varlen attention: sequences given by lengths, in kernels of PyTorch or flash-attn."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from setpoint.config import SetpointError
from setpoint.model.attention.backends import PLAIN, Backend, RowLayout, Scores
from setpoint.model.attention.config import Backend as BackendName
from setpoint.shapes.batch import Lengths

PACKAGES: Final = {
    2: ("flash_attn", "pip install flash-attn"),
    3: ("flash_attn_interface", "built from the folder hopper of Dao-AILab/flash-attention"),
    4: ("flash_attn.cute", "pip install flash-attn-4"),
}
"""Modules of FlashAttention by version, with how to install them."""
FLASH: Final[dict[int, BackendName]] = {
    2: "flash_attention_2",
    3: "flash_attention_3",
    4: "flash_attention_4",
}

# Before 2.12, grouped queries needed no argument.
ASKS_FOR_GROUPS: Final = TorchVersion(torch.__version__) >= "2.12"


class Packed(NamedTuple):
    """Sequences of a batch; in each, the last query is at the last key.

    Arguments:
        query_starts, key_starts: (sequences + 1,) int32 cumulative lengths (cu_seqlens).
        longest_query, longest_key: upper bounds on the lengths, rounded to powers of two, so that
            compiled code and kernel grids have few variants.
        window: tokens visible to the left and right of a query; -1: all.
    """

    query_starts: Tensor
    key_starts: Tensor
    longest_query: int
    longest_key: int
    window: tuple[int, int]


def find_sequences(layout: RowLayout, window: int | None) -> Packed:
    """Find the sequences of a batch: rows, or their documents.

    With lengths from the loader, nothing is read from the device; without them, positions and
    documents are copied to the host once. Padding is a separate sequence, which is cheaper than
    removing it.

    Arguments:
        window: number of positions that a query sees, including its own; None: all before it.

    Raises:
        SetpointError: a document is not contiguous, or positions in a window have gaps.
    """
    sides = (-1 if window is None else window - 1, 0)
    if layout.lengths is not None:
        starts = layout.lengths.cumulative
        longest = round_up(layout.lengths.longest, layout.keys)
        return Packed(starts, starts, longest, longest, sides)
    is_plain = layout.documents is None and not layout.padded
    if is_plain and (layout.positions is None or window is None):
        rows = torch.arange(layout.batch + 1, dtype=torch.int32, device=layout.device)
        queries, keys = layout.queries, layout.keys
        return Packed(rows * queries, rows * keys, queries, keys, sides)
    lengths = _lengths_on_host(layout, window)
    # The queries are the last slots of each row.
    rows, slots = np.divmod(lengths.starts, layout.keys)
    queries = rows * layout.queries + np.maximum(slots - (layout.keys - layout.queries), 0)
    of_queries = Lengths.of(queries).to(layout.device)
    of_keys = lengths.to(layout.device)
    longest = round_up(of_queries.longest, layout.keys), round_up(of_keys.longest, layout.keys)
    return Packed(of_queries.cumulative, of_keys.cumulative, *longest, sides)


def _lengths_on_host(layout: RowLayout, window: int | None) -> Lengths:
    """Find the documents of all keys from their numbers and positions."""
    shape = (layout.batch, layout.keys)
    slots = torch.arange(layout.keys, device=layout.device)[None]
    given = [slots if x is None else x for x in (layout.positions, layout.documents)]
    positions, documents = (
        torch.stack([x.expand(shape).to(torch.int64) for x in given]).cpu().numpy()
    )
    if layout.documents is None:
        documents = np.zeros(shape, np.int64)
    counts = positions >= 0 if layout.padded else np.ones(shape, np.bool_)
    lengths = Lengths.of_runs(np.where(counts, documents, -1))
    begins = lengths.starts[:-1][counts.flat[lengths.starts[:-1]]]
    pieces = np.stack((begins // layout.keys, documents.flat[begins]))
    count = np.unique(pieces, axis=1).shape[1]
    if count != len(begins):
        raise SetpointError(
            f"model.attention_backend: the flash kernels need the tokens of each document to be "
            f"contiguous, but {count} documents are in {len(begins)} pieces; use sdpa or flex"
        )
    gaps = counts & (np.diff(positions, prepend=0) != 1)
    gaps.flat[lengths.starts[:-1]] = False
    if window is not None and gaps.any():
        raise SetpointError(
            f"model.attention_backend: the flash kernels count a window of {window} in tokens, so "
            f"positions must be consecutive; use sdpa or flex"
        )
    return lengths


def round_up(longest: int, most: int) -> int:
    """The next power of two, at most `most`."""
    return min(1 << (longest - 1).bit_length(), most)


class Varlen(Backend):
    """`torch.nn.attention.varlen.varlen_attn`, on a GPU in bf16 or fp16."""

    name: BackendName = "varlen"

    def __init__(self, function: Any = None, asks_for_groups: bool = ASKS_FOR_GROUPS) -> None:
        if function is None:
            from torch.nn.attention.varlen import varlen_attn as function
        self.function = function
        self.asks_for_groups = asks_for_groups

    def prepare_mask(self, layout: RowLayout, window: int | None) -> Packed:
        """See `find_sequences`."""
        return find_sequences(layout, window)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Packed, scores: Scores = PLAIN
    ) -> Tensor:
        """Run the kernel on the positions of all rows, one after the other."""
        shape = query.shape[:2]
        query, key, value = (x.flatten(0, 1) for x in (query, key, value))
        return self.call(query, key, value, mask, scores).unflatten(0, shape)

    def call(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Packed, scores: Scores
    ) -> Tensor:
        """Attend within sequences: queries (T, H, D), keys (T, K, D)."""
        assert scores.soft_cap is None
        assert scores.dropout == 0.0
        assert scores.sinks is None
        options: dict[str, Any] = {"scale": scores.scale, "window_size": mask.window}
        if self.asks_for_groups:
            options["enable_gqa"] = query.shape[1] != key.shape[1]
        return self.function(query, key, value, *mask[:4], **options)


class Flash(Varlen):
    """FlashAttention 2, 3 or 4 (Dao et al., 2023 to 2026) from its own package, in bf16 or fp16."""

    def __init__(self, version: int, function: Any = None) -> None:
        self.version, self.name = version, FLASH[version]
        self.function = function or import_module(PACKAGES[version][0]).flash_attn_varlen_func
        self.parameters = inspect.signature(self.function).parameters

    def call(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Packed, scores: Scores
    ) -> Tensor:
        """Run the package's kernel; see `Varlen.call`."""
        window: tuple[int | None, ...] = mask.window
        if self.version == 4:
            window = tuple(None if side == -1 else side for side in window)
        options: dict[str, Any] = {
            "softmax_scale": scores.scale,
            "causal": True,
            "window_size": window,
        }
        if "deterministic" in self.parameters:
            options["deterministic"] = torch.are_deterministic_algorithms_enabled()
        if scores.soft_cap is not None:
            options["softcap"] = scores.soft_cap
        if scores.dropout:
            options["dropout_p"] = scores.dropout
        result = self.function(
            query,
            key,
            value,
            cu_seqlens_q=mask.query_starts,
            cu_seqlens_k=mask.key_starts,
            max_seqlen_q=mask.longest_query,
            max_seqlen_k=mask.longest_key,
            **options,
        )
        # Some versions return the log-sum-exp as well.
        return result[0] if isinstance(result, tuple) else result
