"""Attention computed in blocks of queries and keys, merged by their log-sum-exp (lse).

Outputs o_1 and o_2 of the same queries with different keys merge to (exp(lse_1) o_1 + exp(lse_2)
o_2) / exp(lse), lse = log(exp(lse_1) + exp(lse_2)) (Milakov and Gimelshein, 2018; Dao et al.,
2022). The gradient of a block needs the merged output and lse. In this file, queries have shape (B,
H, S, D) and keys (B, K, L, D).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from setpoint.model.attention.config import Backend as BackendName
from setpoint.model.attention.selection import LARGEST_FLASH_HEAD, LIMITS

aten = torch.ops.aten
HALVES = (torch.bfloat16, torch.float16)


class BlockScores(NamedTuple):
    """Options of the scores; see `backends.Scores`.

    Arguments:
        kernel: backend with the kernel for blocks; where it cannot run, plain tensor operations do.
    """

    scale: float
    soft_cap: float | None = None
    kernel: BackendName = "sdpa"


class BlockMask(NamedTuple):
    """Mask of a block.

    Arguments:
        causal: query n sees the keys 0 .. n.
        visible: (1 or B, 1, S, L) bool; None: all.
        left: window: number of visible keys before a query's own, with queries and keys aligned at
            their ends; -1: all.
        starts: (N + 1,) int32 cumulative lengths of the sequences in the B * S positions, with as
            many queries as keys; None: a row is one sequence.
        longest: upper bound of these lengths.
    """

    causal: bool = False
    visible: Tensor | None = None
    left: int = -1
    starts: Tensor | None = None
    longest: int = 0


UNMASKED = BlockMask()
CAUSAL = BlockMask(causal=True)


class Gradients(NamedTuple):
    """Gradients of one block."""

    query: Tensor
    key: Tensor
    value: Tensor


def attend_block(
    query: Tensor, key: Tensor, value: Tensor, scores: BlockScores, mask: BlockMask
) -> tuple[Tensor, Tensor]:
    """Compute a block.

    Returns:
        (B, H, S, V) output and (B, H, S) lse, fp32 at least: 0 and -inf for queries without keys.
    """
    kernel = _fused_kernel(query, scores, mask)
    if kernel is None:
        return _plain_forward(query, key, value, scores, mask)
    inputs = _pad_heads(query, key, value, mask, scores.scale, kernel.repeats)
    out, lse = kernel.forward(inputs)
    out, lse = out[..., : value.shape[-1]], lse[..., : query.shape[2]]
    if mask.visible is not None:
        # Results for queries without keys differ between versions of kernels.
        has_keys = mask.visible.any(dim=-1)
        out = out.where(has_keys.unsqueeze(-1), 0.0)
        lse = lse.where(has_keys, -torch.inf)
    return out, lse


def block_gradients(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    scores: BlockScores,
    mask: BlockMask,
) -> Gradients:
    """Compute the gradients of a block from the merged gradient, output and lse."""
    kernel = _fused_kernel(query, scores, mask)
    if kernel is None:
        return _plain_gradients(grad, query, key, value, out, lse, scores, mask)
    inputs = _pad_heads(query, key, value, mask, scores.scale, kernel.repeats)
    wider = inputs.value.shape[-1] - value.shape[-1]
    out, grad = (F.pad(x, (0, wider)) if wider else x for x in (out, grad))
    dq, dk, dv = kernel.backward(inputs, grad, out, lse)
    size, heads = query.shape[-1], key.shape[1]
    return Gradients(
        dq[..., :size],
        _sum_heads(dk[..., :size], heads),
        _sum_heads(dv[..., : value.shape[-1]], heads),
    )


class Inputs(NamedTuple):
    """Inputs of a fused kernel: heads of equal size, (B, H, S, D) and (B, H or K, L, D)."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: BlockMask
    scale: float

    @property
    def bias(self) -> Tensor | None:
        """Bias of the scores."""
        return None if self.mask.visible is None else _bias(self.mask.visible, self.query)

    @property
    def lengths(self) -> tuple[int, int]:
        """Longest sequence of queries and of keys."""
        if self.mask.starts is not None:
            return self.mask.longest, self.mask.longest
        return self.query.shape[2], self.key.shape[2]

    @property
    def window(self) -> dict[str, int]:
        """Window of the flash kernels, if any."""
        left, right = self.mask.left, 0 if self.mask.causal else -1
        return {} if left < 0 else {"window_size_left": left, "window_size_right": right}


Grads = tuple[Tensor, ...]


class _Kernel(NamedTuple):
    """A fused kernel of PyTorch that returns the lse.

    Arguments:
        repeats: whether it needs as many key-value heads as query heads.
    """

    forward: Callable[[Inputs], tuple[Tensor, Tensor]]
    backward: Callable[[Inputs, Tensor, Tensor, Tensor], Grads]
    repeats: bool = True


def _fused_kernel(query: Tensor, scores: BlockScores, mask: BlockMask) -> _Kernel | None:
    """Kernel for a block; None: plain operations."""
    if scores.soft_cap is not None or scores.kernel in ("eager", "sdpa_math"):
        return None
    if LIMITS[scores.kernel].masks == "lengths" and mask.visible is None:
        return SEQUENCES
    if not query.is_cuda:
        return _ON_CPU if scores.kernel != "sdpa_efficient" else None
    if scores.kernel == "sdpa_cudnn":
        return _CUDNN
    flash = query.dtype in HALVES and query.shape[-1] <= LARGEST_FLASH_HEAD and mask.visible is None
    if flash and scores.kernel != "sdpa_efficient":
        return _FLASH
    return _EFFICIENT if query.dtype in (*HALVES, torch.float32) else None


def _pad_heads(
    query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scale: float, repeats: bool
) -> Inputs:
    """Pad heads to equal size, and repeat key-value heads if `_Kernel.repeats`."""
    size = max(query.shape[-1], value.shape[-1])
    if query.is_cuda:
        size += -size % 8
    times = query.shape[1] // key.shape[1]
    query, key, value = (
        F.pad(x, (0, size - x.shape[-1])) if x.shape[-1] != size else x for x in (query, key, value)
    )
    if times > 1 and repeats:
        key, value = (x.repeat_interleave(times, dim=1) for x in (key, value))
    return Inputs(query, key, value, mask, scale)


def _sum_heads(gradient: Tensor, heads: int) -> Tensor:
    """Sum the gradients of repeated key-value heads."""
    if gradient.shape[1] == heads:
        return gradient
    wide = torch.promote_types(gradient.dtype, torch.float32)
    return gradient.unflatten(1, (heads, -1)).sum(dim=2, dtype=wide)


def _bias(mask: Tensor, query: Tensor) -> Tensor:
    """The mask as an additive bias."""
    keys = mask.shape[-1]
    # On a GPU rows begin at multiples of 16 bytes, as those of PyTorch's own masks do.
    ends = -keys % 16 if query.is_cuda else 0
    bias = torch.zeros((*mask.shape[:-1], keys + ends), dtype=query.dtype, device=mask.device)
    bias = bias[..., :keys].masked_fill_(~mask, -torch.inf)
    if not query.is_cuda:
        return bias
    return bias.expand(query.shape[0], query.shape[1], -1, -1)


def _cpu_forward(x: Inputs) -> tuple[Tensor, Tensor]:
    return aten._scaled_dot_product_flash_attention_for_cpu(
        *x[:3], 0.0, x.mask.causal, attn_mask=x.bias, scale=x.scale
    )


def _cpu_backward(x: Inputs, grad: Tensor, out: Tensor, lse: Tensor) -> Grads:
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, *x[:3], out, lse, 0.0, x.mask.causal, attn_mask=x.bias, scale=x.scale
    )


def _flash_forward(x: Inputs) -> tuple[Tensor, Tensor]:
    return aten._scaled_dot_product_flash_attention(
        *x[:3], 0.0, x.mask.causal, False, scale=x.scale
    )[:2]


def _flash_backward(x: Inputs, grad: Tensor, out: Tensor, lse: Tensor) -> Grads:
    # Rows of one length need no cumulative lengths; without dropout no random state is read.
    none = torch.empty(0, dtype=torch.int64, device=grad.device)
    return aten._scaled_dot_product_flash_attention_backward(
        grad, *x[:3], out, lse.contiguous(), None, None, *x.lengths, 0.0, x.mask.causal, none,
        none, scale=x.scale,
    )  # fmt: skip


def _cudnn_forward(x: Inputs) -> tuple[Tensor, Tensor]:
    out, lse = aten._scaled_dot_product_cudnn_attention(
        *x[:3], x.bias, True, 0.0, x.mask.causal, False, scale=x.scale
    )[:2]
    return out, lse.view(x.query.shape[:3])


def _cudnn_backward(x: Inputs, grad: Tensor, out: Tensor, lse: Tensor) -> Grads:
    none = torch.empty((), dtype=torch.int64, device=grad.device)
    return aten._scaled_dot_product_cudnn_attention_backward(
        grad, *x[:3], out, lse.unsqueeze(-1).contiguous(), none, none, x.bias, None, None,
        *x.lengths, 0.0, x.mask.causal, scale=x.scale,
    )  # fmt: skip


def _efficient_forward(x: Inputs) -> tuple[Tensor, Tensor]:
    return aten._scaled_dot_product_efficient_attention(
        *x[:3], x.bias, True, 0.0, x.mask.causal, scale=x.scale
    )[:2]


def _efficient_backward(x: Inputs, grad: Tensor, out: Tensor, lse: Tensor) -> Grads:
    none = torch.empty((), dtype=torch.int64, device=grad.device)
    # The kernel reads whole blocks of 32 rows: where exp(score - lse) must be 0, lse is infinite.
    lse = F.pad(lse, (0, -lse.shape[-1] % 32), value=torch.inf)
    needs_grad = [True, True, True, False]
    return aten._scaled_dot_product_efficient_attention_backward(
        grad, *x[:3], x.bias, out, lse, none, none, 0.0, needs_grad, x.mask.causal, scale=x.scale
    )[:3]


def _sequences_forward(x: Inputs) -> tuple[Tensor, Tensor]:
    starts = x.mask.starts
    tensors = (_positions_first(tensor, x.mask) for tensor in x[:3])
    out, lse = aten._flash_attention_forward(
        *tensors, starts, starts, *x.lengths, 0.0, x.mask.causal, False, scale=x.scale, **x.window
    )[:2]
    if starts is not None:  # (H, T)
        lse = lse.unflatten(1, (x.query.shape[0], -1)).transpose(0, 1)
    return _heads_first(out, x.query), lse


def _sequences_backward(x: Inputs, grad: Tensor, out: Tensor, lse: Tensor) -> Grads:
    starts = x.mask.starts
    tensors = (_positions_first(tensor, x.mask) for tensor in (grad, *x[:3], out))
    lse = lse if starts is None else lse.transpose(0, 1).flatten(1)
    none = torch.zeros(2, dtype=torch.uint64, device=grad.device)
    grads = aten._flash_attention_backward(
        *tensors, lse.contiguous(), starts, starts, *x.lengths, 0.0, x.mask.causal, none, none,
        scale=x.scale, **x.window,
    )  # fmt: skip
    return tuple(_heads_first(tensor, like) for tensor, like in zip(grads, x[:3], strict=True))


def _positions_first(x: Tensor, mask: BlockMask) -> Tensor:
    """(B, H, S, D) to (B, S, H, D), or with sequences to (B * S, H, D)."""
    x = x.transpose(1, 2)
    return x.contiguous() if mask.starts is None else x.flatten(0, 1)


def _heads_first(x: Tensor, like: Tensor) -> Tensor:
    """Inverse of `_positions_first`, back to (B, H, S, D)."""
    return x.view(like.shape[0], like.shape[2], *x.shape[-2:]).transpose(1, 2)


_ON_CPU = _Kernel(_cpu_forward, _cpu_backward)
_FLASH = _Kernel(_flash_forward, _flash_backward)
_CUDNN = _Kernel(_cudnn_forward, _cudnn_backward)
_EFFICIENT = _Kernel(_efficient_forward, _efficient_backward)
SEQUENCES = _Kernel(_sequences_forward, _sequences_backward, repeats=False)
"""PyTorch's varlen flash kernels, of the active version of FlashAttention."""


def _plain_forward(
    query: Tensor, key: Tensor, value: Tensor, scores: BlockScores, mask: BlockMask
) -> tuple[Tensor, Tensor]:
    """Plain operations, in fp32 at least."""
    query, key, value = _upcast(query, key, value)
    capped, _ = _capped_scores(query, key, scores, mask)
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
    mask: BlockMask,
) -> Gradients:
    """Backward pass of FlashAttention (Dao et al., 2022) with soft cap, in plain operations."""
    query, key, value, grad, out = _upcast(query, key, value, grad, out)
    groups = (key.shape[1], -1)
    capped, slope = _capped_scores(query, key, scores, mask)
    weights = (capped - lse.unflatten(1, groups).unsqueeze(-1)).exp()
    grad_heads = grad.unflatten(1, groups)
    dv = (weights.mT @ grad_heads).sum(dim=2)
    dp = grad_heads @ value.unsqueeze(2).mT
    delta = (grad * out).sum(dim=-1).unflatten(1, groups).unsqueeze(-1)
    ds = weights * (dp - delta) * scores.scale
    if slope is not None:
        ds = ds * slope
    dq = (ds @ key.unsqueeze(2)).flatten(1, 2)
    dk = (ds.mT @ query.unflatten(1, groups)).sum(dim=2)
    return Gradients(dq, dk, dv)


def _capped_scores(
    query: Tensor, key: Tensor, scores: BlockScores, mask: BlockMask
) -> tuple[Tensor, Tensor | None]:
    """(B, K, H/K, S, L) scores, -inf where masked, and the slope of the soft cap."""
    products = query.unflatten(1, (key.shape[1], -1)) @ key.unsqueeze(2).mT * scores.scale
    slope = None
    if scores.soft_cap is not None:
        bent = torch.tanh(products / scores.soft_cap)
        products, slope = bent * scores.soft_cap, 1 - bent.square()
    if mask.causal:
        causal = torch.ones(products.shape[-2:], dtype=torch.bool, device=products.device).tril()
        products = products.masked_fill(~causal, -torch.inf)
    if mask.visible is not None:
        products = products.masked_fill(~mask.visible.unsqueeze(2), -torch.inf)
    return products, slope


def _upcast(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.to(torch.promote_types(x.dtype, torch.float32)) for x in tensors)
