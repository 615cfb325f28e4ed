"""Varlen attention: sequences given by lengths, in kernels of PyTorch or flash-attn."""

from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.torch_version import TorchVersion

from setpoint.config import SetpointError
from setpoint.model.attention.backends import PLAIN, Backend, RowLayout, Scores
from setpoint.model.attention.config import Backend as BackendName
from setpoint.model.attention.selection import LIMITS

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
GENERATIONS: Final = {9: 3, 10: 4}
"""Version of FlashAttention by major compute capability."""


class Packed(NamedTuple):
    """Sequences of a batch; in each, the last query is at the last key.

    Arguments:
        query_starts, key_starts: (sequences + 1,) int32 cumulative lengths (cu_seqlens).
        longest_query, longest_key: upper bounds on the lengths, rounded to powers of two, so that
            compiled code and kernel grids have few variants.
        window: tokens visible to the left and right of a query; -1: all.
        queries, keys: (T,) int64 positions in the flattened batch that are not padding; None: all.
    """

    query_starts: Tensor
    key_starts: Tensor
    longest_query: int
    longest_key: int
    window: tuple[int, int]
    queries: Tensor | None = None
    keys: Tensor | None = None


def find_sequences(layout: RowLayout, window: int | None) -> Packed:
    """Find the sequences of a batch: rows, or their documents.

    With lengths from the loader, nothing is read from the device, and padding is a separate
    sequence, which is cheaper than removing it. Without lengths, positions and documents are copied
    to the host once.

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
    return _find_on_host(layout, window)._replace(window=sides)


def _find_on_host(layout: RowLayout, window: int | None) -> Packed:
    """Find the sequences from positions and documents, in one transfer to the host."""
    shape = (layout.batch, layout.keys)
    numbers = torch.arange(layout.keys, device=layout.device)[None]
    given = [numbers if x is None else x for x in (layout.positions, layout.documents)]
    positions, documents = (
        torch.stack([x.expand(shape).to(torch.int64) for x in given]).cpu().numpy()
    )
    if layout.documents is None:
        documents = np.zeros(shape, np.int64)
    counts = positions >= 0 if layout.padded else np.ones(shape, np.bool_)
    keys = np.flatnonzero(counts)
    rows, slots = np.divmod(keys, layout.keys)
    positions, documents = positions.ravel()[keys], documents.ravel()[keys]
    begins = np.ones(len(keys), np.bool_)
    begins[1:] = (rows[1:] != rows[:-1]) | (documents[1:] != documents[:-1])
    pieces = int(begins.sum())
    count = len(np.unique(np.stack((rows, documents)), axis=1).T)
    if count != pieces:
        raise SetpointError(
            f"model.attention_backend: the flash kernels need the tokens of each document to be "
            f"contiguous, but {count} documents are in {pieces} pieces; use sdpa or flex"
        )
    if window is not None and (~begins[1:] & (positions[1:] != positions[:-1] + 1)).any():
        raise SetpointError(
            f"model.attention_backend: the flash kernels count a window of {window} in tokens, so "
            f"positions must be consecutive; use sdpa or flex"
        )
    # The queries are the last slots of each row.
    slots = slots - (layout.keys - layout.queries)
    is_query = slots >= 0
    sequence = np.cumsum(begins) - 1
    lengths = [np.bincount(x, minlength=pieces) for x in (sequence[is_query], sequence)]
    starts = [np.append(0, np.cumsum(x)).astype(np.int32) for x in lengths]

    def to_device(array: Any) -> Tensor:
        return torch.from_numpy(array).to(layout.device, non_blocking=True)

    query_longest, key_longest = (round_up(int(x.max()), layout.keys) for x in lengths)
    return Packed(
        to_device(starts[0]),
        to_device(starts[1]),
        query_longest,
        key_longest,
        window=(-1, 0),
        queries=to_device((rows * layout.queries + slots)[is_query]) if layout.padded else None,
        keys=to_device(keys) if layout.padded else None,
    )


def round_up(longest: int, most: int) -> int:
    """The next power of two, at most `most`."""
    return min(1 << (longest - 1).bit_length(), most)


class Varlen(Backend):
    """`torch.nn.attention.varlen.varlen_attn`, on a GPU in bf16 or fp16."""

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
        """Run the kernel on all tokens except padding."""
        shape = query.shape[:2]
        query, key, value = (x.flatten(0, 1) for x in (query, key, value))
        if mask.queries is None or mask.keys is None:
            return self.call(query, key, value, mask, scores).unflatten(0, shape)
        mixed = self.call(query[mask.queries], key[mask.keys], value[mask.keys], mask, scores)
        padded = mixed.new_zeros(query.shape[0], *mixed.shape[1:])
        return padded.index_copy(0, mask.queries, mixed).unflatten(0, shape)

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
        self.version = version
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


def use_flash(name: str, device: torch.device, head: int, dropout: bool) -> None:
    """Activate the fastest version of FlashAttention in PyTorch's flash operators.

    PyTorch registers versions 3 and 4, each for a generation of GPUs; its own kernels are version
    2. A backend with a version in its name, as for rings, gets that version.
    """
    registered = getattr(nn.attention, "list_flash_attention_impls", list)()
    version = int(name[-1]) if name.startswith("flash_attention_") else None
    if version is None:
        version = 2 if dropout else _fastest_flash(device, head)
    implementation = f"FA{version}" if f"FA{version}" in registered else None
    attention: Any = nn.attention
    if not registered or attention.current_flash_attention_impl() == implementation:
        return
    if implementation is None:
        attention.restore_flash_attention_impl()
    else:
        attention.activate_flash_attention_impl(implementation)


@cache
def _fastest_flash(device: torch.device, head: int) -> int:
    version = GENERATIONS.get(torch.cuda.get_device_capability(device)[0], 2)
    largest = LIMITS[FLASH[version]].largest_head
    assert largest is not None
    fits = head <= largest and head % LIMITS[FLASH[version]].head_multiple == 0
    return version if fits and has_package(version) else 2


def has_package(version: int) -> bool:
    """True if the package of a version of FlashAttention is installed."""
    module = PACKAGES[version][0]
    parent = module.partition(".")[0]
    return find_spec(parent) is not None and (parent == module or find_spec(module) is not None)
