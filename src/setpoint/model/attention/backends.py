"""Attention backends: masks, their common interface, and backends with a dense mask."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from setpoint.config import SetpointError
from setpoint.model.attention.config import Backend as BackendName
from setpoint.shapes.batch import Lengths


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Layout of queries and keys in rows; the queries belong to the last keys.

    Arguments:
        keys: L, the length of rows, including the cache.
        positions: (1, L) or (B, L) integers of the keys; None: 0 .. L - 1.
        padded: whether positions may be negative, which marks padding.
        documents: (1, L) or (B, L) integers; None: each row is one document.
        lengths: lengths of the documents, or of rows before the padding at their end, if the host
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
        """True if the causal mask is the only one, in rows without a cache."""
        return self.queries == self.keys and not self.is_masked(window)

    def is_masked(self, window: int | None) -> bool:
        """True if documents, padding or a window hide keys in addition to the causal mask.

        If lengths are known, padding is at the end of rows, where the causal mask hides it.
        """
        narrow = window is not None and (
            window < self.keys if self.lengths is not None or self.positions is None else True
        )
        return narrow or self.documents is not None or (self.padded and self.lengths is None)

    def chunked(self, size: int) -> RowLayout:
        """Make each chunk a separate document, which all backends can isolate (Llama 4)."""
        is_counted = self.positions is None or self.lengths is not None  # below `keys`
        if size >= self.keys and is_counted:
            return self
        positions, documents, starts = self.positions, self.documents, None
        if torch.compiler.is_compiling():  # whose graphs hold no arrays of the host
            pass
        elif self.lengths is not None and (documents is None or positions is not None):
            starts = self.lengths.starts
        elif positions is None and documents is None and self.queries == self.keys:
            starts = np.arange(self.batch + 1) * self.keys
        if positions is None:
            positions = torch.arange(self.keys, device=self.device)[None]
        chunks = positions.div(size, rounding_mode="floor")
        chunks = chunks if documents is None else (documents.long() << 32) + chunks
        lengths = None
        if starts is not None:
            runs = [np.arange(begin, end, size) for begin, end in pairwise(starts)]
            lengths = Lengths.of(np.append(np.concatenate(runs), starts[-1])).to(self.device)
        return replace(self, documents=chunks, lengths=lengths)

    def without_first(self, count: int) -> RowLayout:
        """Drop the first keys, which no query sees."""
        if count == 0:
            return self
        return replace(
            self,
            keys=self.keys - count,
            positions=None if self.positions is None else self.positions[:, count:],
            documents=None if self.documents is None else self.documents[:, count:],
            lengths=None,
        )


def visibility(layout: RowLayout, window: int | None) -> Callable[..., Tensor]:
    """The attention mask as a function of a row, a query's slot and a key's slot.

    The key must not be padding. It must be in the same document as the query, not after it, and
    less than `window` positions before it. Order is determined by slots, because positions restart
    in each document; distance by positions, because padding takes no room in a window. Every query
    sees itself, even padding, because a softmax needs a key.

    Arguments:
        window: number of visible positions, including the query's; None: unlimited.

    Returns:
        a function of integer tensors that broadcast; True where the query sees the key.
    """
    positions, documents = layout.positions, layout.documents

    def lookup(x: Tensor, row: Tensor, slot: Tensor) -> Tensor:
        return x[row if x.shape[0] > 1 else 0, slot]

    def sees(row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        mask = key <= query
        if window is not None and positions is None:
            mask = mask & (query - key < window)
        if window is not None and positions is not None:
            mask = mask & (lookup(positions, row, query) - lookup(positions, row, key) < window)
        if documents is not None:
            mask = mask & (lookup(documents, row, query) == lookup(documents, row, key))
        if layout.padded and positions is not None:
            mask = (mask & (lookup(positions, row, key) >= 0)) | (query == key)
        return mask

    return sees


def visible(
    layout: RowLayout, window: int | None, queries: slice | None = None, keys: slice = slice(None)
) -> Tensor:
    """The (1 or B, 1, queries, keys) attention mask; see `visibility`.

    Arguments:
        queries, keys: slots for which to compute the mask; None: the slots of the queries.
    """
    if queries is None:
        queries = slice(layout.keys - layout.queries, None)
    slots = torch.arange(layout.keys, device=layout.device)
    rows = torch.arange(layout.batch, device=layout.device)[:, None, None]
    mask = visibility(layout, window)(rows, slots[queries, None], slots[keys])
    return (mask if mask.dim() == 3 else mask[None])[:, None]


class Scores(NamedTuple):
    """Options of the attention scores.

    Arguments:
        scale: factor of the products of queries and keys; None: 1 / sqrt(D).
        soft_cap: scaled products x become soft_cap * tanh(x / soft_cap) (Gemma 2); None: none.
        dropout: probability of zeroing a weight.
        sinks: (H,) learned score of each head that has no value (GPT-OSS, 2025); None: no sinks.
    """

    scale: float | None = None
    soft_cap: float | None = None
    dropout: float = 0.0
    sinks: Tensor | None = None


PLAIN = Scores()


class Backend(ABC):
    """One way to compute softmax(scale * Q K^T) V (Vaswani et al., 2017) under a mask."""

    name: BackendName

    @abstractmethod
    def prepare_mask(self, layout: RowLayout, window: int | None) -> Any:
        """Prepare the mask for all layers of a kind.

        Arguments:
            window: number of positions that a query sees, including its own; None: all before it.

        Returns:
            the `mask` argument of `attend`.

        Raises:
            SetpointError: the backend cannot represent the mask.
        """

    @abstractmethod
    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Any, scores: Scores = PLAIN
    ) -> Tensor:
        """Compute attention.

        Arguments:
            query: (B, S, H, D).
            key: (B, L, K, D); each key-value head serves H / K consecutive query heads.
            value: (B, L, K, V); V may differ from D if the backend supports it.
            mask: from `prepare_mask`.

        Returns:
            (B, S, H, V).
        """


class Eager(Backend):
    """Plain tensor operations with all S x L weights in memory; a reference for other backends."""

    name: BackendName = "eager"

    def prepare_mask(self, layout: RowLayout, window: int | None) -> Tensor:
        """(1 or B, 1, S, L) bool mask."""
        return visible(layout, window)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scores: Scores = PLAIN
    ) -> Tensor:
        """Compute the formula, with the softmax in fp32 at least."""
        scale = usual_scale(query) if scores.scale is None else scores.scale
        # Key-value heads are broadcast over their query heads: (B, K, H/K, S, D).
        heads = query.transpose(1, 2).unflatten(1, (key.shape[2], -1))
        products = heads @ key.permute(0, 2, 3, 1).unsqueeze(2) * scale
        if scores.soft_cap is not None:
            products = torch.tanh(products / scores.soft_cap) * scores.soft_cap
        products = products.to(torch.promote_types(products.dtype, torch.float32))
        products = products.masked_fill(~mask.unsqueeze(2), -torch.inf)
        if scores.sinks is None:
            weights = products.softmax(dim=-1)
        else:
            sinks = scores.sinks.to(products.dtype).view(1, *products.shape[1:3], 1, 1)
            products = torch.cat((products, sinks.expand(*products.shape[:-1], 1)), dim=-1)
            weights = products.softmax(dim=-1)[..., :-1]
        weights = F.dropout(weights, scores.dropout).to(value.dtype)
        mixed = weights @ value.transpose(1, 2).unsqueeze(2)
        return mixed.flatten(1, 2).transpose(1, 2)


KERNELS: Final[dict[BackendName, SDPBackend | None]] = {
    "sdpa": None,
    "sdpa_flash": SDPBackend.FLASH_ATTENTION,
    "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa_math": SDPBackend.MATH,
}
FASTEST_ON_GPU = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
"""cuDNN is the fastest on recent GPUs; PyTorch's own order has it last."""
SHARE_NO_HEADS = {"cuda"}
"""Device types whose masked kernels, cuDNN's excepted, take no grouped queries; a dry run adds the
CPU, which stands for a GPU."""


class SdpaMask(NamedTuple):
    """Mask of scaled dot product attention.

    Arguments:
        is_causal: causal mask, S = L.
        mask: (1, 1, S, L) or (B, 1, S, L) bool; None: none.
    """

    is_causal: bool
    mask: Tensor | None = None


class SDPA(Backend):
    """`torch.nn.functional.scaled_dot_product_attention`.

    Arguments:
        name: name of the kernel, as in the configuration; "sdpa": the first one that supports the
            inputs.
    """

    def __init__(self, name: BackendName) -> None:
        self.name = name
        self.kernel = KERNELS[name]

    def prepare_mask(self, layout: RowLayout, window: int | None) -> SdpaMask:
        """Make a dense mask unless the causal one suffices."""
        if layout.is_causal(window):
            return SdpaMask(is_causal=True)
        if layout.queries == 1 and not layout.is_masked(window):  # it sees all keys
            return SdpaMask(is_causal=False)
        if self.name == "sdpa_flash" and layout.device.type == "cuda":
            raise SetpointError(
                "model.attention_backend = sdpa_flash does not support masks on a GPU, which "
                "windows, documents and padding need; use auto, flex, varlen or flash_attention_2"
            )
        return SdpaMask(is_causal=False, mask=visible(layout, window))

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: SdpaMask, scores: Scores = PLAIN
    ) -> Tensor:
        """Run one of PyTorch's kernels."""
        assert scores.soft_cap is None and scores.sinks is None
        if self._needs_equal_heads(query, mask):
            key, value = (repeat_heads(x, query.shape[2] // x.shape[2]) for x in (key, value))
        with self._kernels(query):
            mixed = F.scaled_dot_product_attention(
                query.transpose(1, 2),
                key.transpose(1, 2),
                value.transpose(1, 2),
                attn_mask=mask.mask,
                dropout_p=scores.dropout,
                is_causal=mask.is_causal,
                scale=scores.scale,
                enable_gqa=query.shape[2] != key.shape[2],
            )
        return mixed.transpose(1, 2)

    def _needs_equal_heads(self, query: Tensor, mask: SdpaMask) -> bool:
        # The memory-efficient kernel, the only one with masks on a GPU apart from cuDNN's, takes no
        # grouped queries; without it PyTorch falls back to the math kernel.
        return self.name == "sdpa_efficient" or (
            self.name == "sdpa" and mask.mask is not None and query.device.type in SHARE_NO_HEADS
        )

    def _kernels(self, query: Tensor) -> AbstractContextManager[object]:
        if self.kernel is not None:
            return sdpa_kernel(self.kernel)
        return sdpa_kernel(FASTEST_ON_GPU, set_priority=True) if query.is_cuda else nullcontext()


def repeat_heads(x: Tensor, times: int) -> Tensor:
    """Repeat each key-value head: (B, L, K, D) to (B, L, K * times, D)."""
    return x if times == 1 else torch.repeat_interleave(x, times, dim=2)


def add_sinks(mixed: Tensor, normalizer: Tensor, sinks: Tensor) -> Tensor:
    """Rescale attention results as if each softmax had a sink in addition to its keys.

    A sink multiplies the weights by exp(lse) / (exp(lse) + exp(sink)).

    Arguments:
        mixed: (B, H, S, V).
        normalizer: (B, H, S) log-sum-exp of the scores (lse).
        sinks: (H,).
    """
    share = torch.sigmoid(normalizer - sinks[:, None].to(normalizer))
    return (mixed * share[..., None]).to(mixed.dtype)


def usual_scale(query: Tensor) -> float:
    """The default scale, 1 / sqrt(D)."""
    return 1 / math.sqrt(query.shape[-1])
