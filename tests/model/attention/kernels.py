"""What the flash kernels compute, on any device: their arguments, in plain mathematics."""

import inspect
import math

import torch
from torch.nn.attention import varlen

DTYPES: list[tuple[torch.dtype, ...]] = []
"""Dtypes of queries, keys and values that reached the kernel."""
VARLEN = inspect.signature(varlen.varlen_attn)


def varlen_attn(*args, **kwargs):
    """`torch.nn.attention.varlen.varlen_attn`, held to the real one's signature."""
    bound = VARLEN.bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    grouped = given["query"].shape[1] != given["key"].shape[1]
    assert given.get("enable_gqa", grouped) == grouped
    left, right = given["window_size"]
    DTYPES.append(tuple(given[name].dtype for name in ("query", "key", "value")))
    return sequences(
        *(given[name] for name in ("query", "key", "value", "cu_seq_q", "cu_seq_k")),
        *(given[name] for name in ("max_q", "max_k")),
        scale=given["scale"],
        left=left,
        right=right,
    )


varlen_attn.__signature__ = VARLEN


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
):
    """`flash_attn.flash_attn_varlen_func`, by the signature of version 2."""
    assert dropout_p == 0.0
    return sequences(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        scale=softmax_scale,
        left=window_size[0],
        right=0 if causal else window_size[1],
        soft_cap=softcap or None,
    )


def sequences(
    q, k, v, starts_q, starts_k, longest_q, longest_k, *, scale, left, right, soft_cap=None
):
    """Attention within each sequence; the last query stands at the last key."""
    assert starts_q.dtype == starts_k.dtype == torch.int32
    assert starts_q[-1] == q.shape[0]
    assert starts_k[-1] == k.shape[0] == v.shape[0]
    assert starts_q.diff().max() <= longest_q
    assert starts_k.diff().max() <= longest_k
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    group = q.shape[1] // k.shape[1]
    parts = []
    for index in range(len(starts_q) - 1):
        queries = q[starts_q[index] : starts_q[index + 1]]
        keys, values = (x[starts_k[index] : starts_k[index + 1]] for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", queries, keys.repeat_interleave(group, 1)) * scale
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        at = torch.arange(len(queries))[:, None] + len(keys) - len(queries)
        other = torch.arange(len(keys))
        hidden = torch.zeros(len(queries), len(keys), dtype=torch.bool)
        if left >= 0:
            hidden |= other < at - left
        if right >= 0:
            hidden |= other > at + right
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        parts.append(torch.einsum("hqk,khd->qhd", weights, values.repeat_interleave(group, 1)))
    return torch.cat(parts)
