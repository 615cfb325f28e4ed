"""Attention of some queries to some keys, with what it takes to add up several such blocks.

A block gives its output and, of each query, the log of the sum of the exponentials of its scores
(lse). Outputs o_1 and o_2 of the same queries to other keys add up to
(exp(lse_1) o_1 + exp(lse_2) o_2) / exp(lse), lse = log(exp(lse_1) + exp(lse_2)) (Milakov and
Gimelshein, 2018; Dao et al., 2022). The gradient of a block needs the output and the lse of all
blocks together. Shapes here are (B, H, S, D) for queries and (B, K, L, D) for keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from setpoint.model.attention.support import LARGEST_FLASH_HEAD

aten = torch.ops.aten
HALVES = (torch.bfloat16, torch.float16)
FUSED = ("sdpa", "sdpa_flash", "sdpa_efficient")


class BlockScores(NamedTuple):
    """How scores come of products.

    Arguments:
        soft_cap: scaled products x become soft_cap * tanh(x / soft_cap); None: they stay.
        kernel: of the fused ones, which may be taken: sdpa for any, sdpa_flash, sdpa_efficient;
            others mean plain tensor operations.
    """

    scale: float
    soft_cap: float | None = None
    kernel: str = "sdpa"


class Gradients(NamedTuple):
    """Of one block."""

    query: Tensor
    key: Tensor
    value: Tensor


def attend_block(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scores: BlockScores,
    causal: bool,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Mix the values of some keys.

    Arguments:
        causal: query n sees the keys 0 .. n; there are as many of both.
        mask: (1 or B, 1, S, L) bool, what is seen; None: all, or what `causal` leaves.

    Returns:
        (B, H, S, V) the output and (B, H, S) the lse, fp32 at least: 0 and -inf where a query
        sees no key.
    """
    kernel = _fused(query, scores, mask)
    if kernel is None:
        return _plain(query, key, value, scores, causal, mask)
    query, key, value, size = _fitted(query, key, value)
    bias = None if mask is None else _bias(mask, query)
    out, lse = kernel.forward(query, key, value, bias, causal, scores.scale)
    out, lse = out[..., :size], lse[..., : query.shape[2]]
    if mask is not None:
        # What kernels give for queries that see nothing differs between versions.
        seen = mask.any(dim=-1)
        out = out.where(seen.unsqueeze(-1), 0.0)
        lse = lse.where(seen, -torch.inf)
    return out, lse


def block_gradients(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    scores: BlockScores,
    causal: bool,
    mask: Tensor | None,
) -> Gradients:
    """Compute a block's part of the gradients.

    Arguments:
        grad: (B, H, S, V) of the output of all blocks together.
        out, lse: of all blocks together.
    """
    kernel = _fused(query, scores, mask)
    if kernel is None:
        return _plain_gradients(grad, query, key, value, out, lse, scores, causal, mask)
    value_size, size, heads = value.shape[-1], query.shape[-1], key.shape[1]
    query, key, value, _ = _fitted(query, key, value)
    wider = value.shape[-1] - value_size
    out, grad = (F.pad(each, (0, wider)) if wider else each for each in (out, grad))
    bias = None if mask is None else _bias(mask, query)
    found = kernel.backward(grad, query, key, value, out, lse, bias, causal, scores.scale)
    of_query, of_key, of_value = found
    return Gradients(
        of_query[..., :size],
        _sum_heads(of_key[..., :size], heads),
        _sum_heads(of_value[..., :value_size], heads),
    )


class _Kernel(NamedTuple):
    """A fused kernel of PyTorch's, of operators that give the lse."""

    forward: Callable[..., tuple[Tensor, Tensor]]
    backward: Callable[..., tuple[Tensor, Tensor, Tensor]]


def _fused(query: Tensor, scores: BlockScores, mask: Tensor | None) -> _Kernel | None:
    """The kernel for a block; None: plain operations."""
    if scores.soft_cap is not None or scores.kernel not in FUSED:
        return None
    if not query.is_cuda:
        return _ON_CPU if scores.kernel != "sdpa_efficient" else None
    flash = query.dtype in HALVES and query.shape[-1] <= LARGEST_FLASH_HEAD and mask is None
    if flash and scores.kernel != "sdpa_efficient":
        return _FLASH
    return _EFFICIENT if query.dtype in (*HALVES, torch.float32) else None


def _fitted(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """Heads as the kernels take them: of one size, and as many of keys as of queries.

    Returns:
        these, and the size of values before.
    """
    size = max(query.shape[-1], value.shape[-1])
    if query.is_cuda:
        size += -size % 8
    times, own = query.shape[1] // key.shape[1], value.shape[-1]
    query, key, value = (
        F.pad(each, (0, size - each.shape[-1])) if each.shape[-1] != size else each
        for each in (query, key, value)
    )
    if times > 1:
        key, value = (each.repeat_interleave(times, dim=1) for each in (key, value))
    return query, key, value, own


def _sum_heads(gradient: Tensor, heads: int) -> Tensor:
    """The gradient of key-value heads that each served several query heads."""
    if gradient.shape[1] == heads:
        return gradient
    wide = torch.promote_types(gradient.dtype, torch.float32)
    return gradient.unflatten(1, (heads, -1)).sum(dim=2, dtype=wide)


def _bias(mask: Tensor, query: Tensor) -> Tensor:
    """What is added to scores, as the kernels take it."""
    keys = mask.shape[-1]
    # On a GPU rows begin at multiples of 16 bytes, as those of PyTorch's own masks do.
    ends = -keys % 16 if query.is_cuda else 0
    bias = torch.zeros((*mask.shape[:-1], keys + ends), dtype=query.dtype, device=mask.device)
    bias = bias[..., :keys].masked_fill_(~mask, -torch.inf)
    if not query.is_cuda:
        return bias
    return bias.expand(query.shape[0], query.shape[1], -1, -1)


def _cpu_forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    return aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, attn_mask=bias, scale=scale
    )


def _cpu_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, query, key, value, out, lse, 0.0, causal, attn_mask=bias, scale=scale
    )


def _flash_forward(
    query: Tensor, key: Tensor, value: Tensor, _: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    return aten._scaled_dot_product_flash_attention(
        query, key, value, 0.0, causal, False, scale=scale
    )[:2]


def _flash_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    _: Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    # Rows of one length need no table of them; nothing is dropped, so the generator is not read.
    none = torch.empty(0, dtype=torch.int64, device=query.device)
    lengths = query.shape[2], key.shape[2]
    return aten._scaled_dot_product_flash_attention_backward(
        grad, query, key, value, out, lse.contiguous(), None, None, *lengths, 0.0, causal,
        none, none, scale=scale,
    )  # fmt: skip


def _efficient_forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, True, 0.0, causal, scale=scale
    )[:2]


def _efficient_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    none = torch.empty((), dtype=torch.int64, device=query.device)
    # The kernel reads whole blocks of 32 rows: where exp(score - lse) must be 0, lse is infinite.
    lse = F.pad(lse, (0, -lse.shape[-1] % 32), value=torch.inf)
    wanted = [True, True, True, False]
    found: Any = aten._scaled_dot_product_efficient_attention_backward(
        grad, query, key, value, bias, out, lse, none, none, 0.0, wanted, causal, scale=scale
    )
    return found[0], found[1], found[2]


_ON_CPU = _Kernel(_cpu_forward, _cpu_backward)
_FLASH = _Kernel(_flash_forward, _flash_backward)
_EFFICIENT = _Kernel(_efficient_forward, _efficient_backward)


def _plain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scores: BlockScores,
    causal: bool,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Step by step, in fp32 at least."""
    query, key, value = _widened(query, key, value)
    capped, _ = _scored(query, key, scores, causal, mask)
    lse = capped.logsumexp(dim=-1)
    weights = (capped - lse.unsqueeze(-1)).exp().where(lse.isfinite().unsqueeze(-1), 0.0)
    return (weights @ value.unsqueeze(2)).flatten(1, 2), lse.flatten(1, 2)


def _plain_gradients(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    scores: BlockScores,
    causal: bool,
    mask: Tensor | None,
) -> Gradients:
    """The formulas of the backward pass of FlashAttention (Dao et al., 2022), and of the cap."""
    query, key, value, grad, out = _widened(query, key, value, grad, out)
    groups = (key.shape[1], -1)
    capped, slope = _scored(query, key, scores, causal, mask)
    weights = (capped - lse.unflatten(1, groups).unsqueeze(-1)).exp()
    grad_heads = grad.unflatten(1, groups)
    of_value = (weights.mT @ grad_heads).sum(dim=2)
    of_weights = grad_heads @ value.unsqueeze(2).mT
    own = (grad * out).sum(dim=-1).unflatten(1, groups).unsqueeze(-1)
    of_scores = weights * (of_weights - own) * scores.scale
    if slope is not None:
        of_scores = of_scores * slope
    of_query = (of_scores @ key.unsqueeze(2)).flatten(1, 2)
    of_key = (of_scores.mT @ query.unflatten(1, groups)).sum(dim=2)
    return Gradients(of_query, of_key, of_value)


def _scored(
    query: Tensor, key: Tensor, scores: BlockScores, causal: bool, mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """(B, K, H/K, S, L) scores, -inf where nothing is seen, and the slope of the cap."""
    found = query.unflatten(1, (key.shape[1], -1)) @ key.unsqueeze(2).mT * scores.scale
    slope = None
    if scores.soft_cap is not None:
        bent = torch.tanh(found / scores.soft_cap)
        found, slope = bent * scores.soft_cap, 1 - bent.square()
    if causal:
        seen = torch.ones(found.shape[-2:], dtype=torch.bool, device=found.device).tril()
        found = found.masked_fill(~seen, -torch.inf)
    if mask is not None:
        found = found.masked_fill(~mask.unsqueeze(2), -torch.inf)
    return found, slope


def _widened(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(each.to(torch.promote_types(each.dtype, torch.float32)) for each in tensors)
