"""The parameters of a transformer from its configuration alone: their names, shapes and kinds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.model.config import LayerNormConfig, NormConfig
from setpoint.model.size import embedding_rows
from setpoint.shapes.parameter import Kind, Parameter

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig
    from setpoint.model.moe.config import MoE

Sized = tuple[str, tuple[int, ...], Kind]


def parameters_of(config: TransformerConfig, vocab_size: int) -> Iterator[Parameter]:
    """List the parameters of a transformer without building it.

    Arguments:
        config: a resolved configuration whose size is known; see `unknown_size`.
        vocab_size: how many tokens the tokenizer has.

    Returns:
        the parameters, in the order of the module's `named_parameters()`.
    """
    for name, shape, kind in _model(config, embedding_rows(config, vocab_size)):
        yield Parameter(name, shape, kind, config.rate_multiplier(name, len(shape)))


def fused_parts_of(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    """Find modules that hold several projections one above the other, and the outputs of each."""
    if not config.merge_qkv or config.mla is not None:
        return {}
    query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
    names = (f"layers.{layer}.attention.query_key_value" for layer in range(config.layers))
    return dict.fromkeys(names, (query, key, key))


def _model(c: TransformerConfig, rows: int) -> Iterator[Sized]:
    yield "embedding.weight", (rows, c.dim), "embedding"
    if c.positions == "learned":
        yield "position_embedding.weight", (c.max_sequence_length, c.dim), "embedding"
    for layer in range(c.layers):
        for name, shape, kind in _block(c, layer):
            yield f"layers.{layer}.{name}", shape, kind
    yield from _norm(c.norm, "norm", c.dim)
    if not c.tie_embeddings:
        yield "output.weight", (rows, c.dim), "output"


def _block(c: TransformerConfig, layer: int) -> Iterator[Sized]:
    before, after = c.norm_placement in ("pre", "both"), c.norm_placement in ("post", "both")
    if before:
        yield from _norm(c.norm, "attention_norm", c.dim)
    attention = _attention(c) if c.mla is None else _latent(c)
    for name, shape, kind in attention:
        yield f"attention.{name}", shape, kind
    if after:
        yield from _norm(c.norm, "attention_output_norm", c.dim)
    if before:
        yield from _norm(c.norm, "feed_forward_norm", c.dim)
    sparse = c.moe is not None and c.moe.has_experts(layer)
    inner = _experts(c, c.moe) if sparse and c.moe else _feed_forward(c, c.ffn_dim, c.ffn_bias)
    for name, shape, kind in inner:
        yield f"feed_forward.{name}", shape, kind
    if after:
        yield from _norm(c.norm, "feed_forward_output_norm", c.dim)


def _attention(c: TransformerConfig) -> Iterator[Sized]:
    query, key_value = c.heads * c.head_dim, c.kv_heads * c.head_dim
    if c.merge_qkv:
        yield from _linear("query_key_value", query + 2 * key_value, c.dim, c.qkv_bias)
    else:
        yield from _linear("query", query, c.dim, c.qkv_bias)
        yield from _linear("key", key_value, c.dim, c.qkv_bias)
        yield from _linear("value", key_value, c.dim, c.qkv_bias)
    if c.qk_norm:
        yield from _norm(c.norm, "query_norm", c.head_dim)
        yield from _norm(c.norm, "key_norm", c.head_dim)
    yield from _linear("output", c.dim, query, c.attention_output_bias)


def _latent(c: TransformerConfig) -> Iterator[Sized]:
    m = c.mla
    assert m is not None
    queries = c.heads * (m.nope_head_dim + m.rope_head_dim)
    if m.query_rank is None:
        yield from _linear("query", queries, c.dim)
    else:
        yield from _linear("query_down", m.query_rank, c.dim)
        yield from _norm(c.norm, "query_down_norm", m.query_rank)
        yield from _linear("query_up", queries, m.query_rank)
    yield from _linear("key_value_down", m.kv_rank + m.rope_head_dim, c.dim)
    yield from _norm(c.norm, "key_value_down_norm", m.kv_rank)
    yield from _linear("key_value_up", c.heads * (m.nope_head_dim + m.value_head_dim), m.kv_rank)
    yield from _linear("output", c.dim, c.heads * m.value_head_dim, c.attention_output_bias)


def _feed_forward(c: TransformerConfig, inner: int, bias: bool) -> Iterator[Sized]:
    if c.is_gated:
        yield from _linear("gate", inner, c.dim, bias)
    yield from _linear("up", inner, c.dim, bias)
    yield from _linear("down", c.dim, inner, bias)


def _experts(c: TransformerConfig, moe: MoE) -> Iterator[Sized]:
    count, width = moe.experts, moe.width(c.ffn_dim)
    yield "router.weight", (count, c.dim), "router"
    if moe.packed:
        if c.is_gated:
            yield "experts.gate", (count, c.dim, width), "matrix"
        yield "experts.up", (count, c.dim, width), "matrix"
        yield "experts.down", (count, width, c.dim), "matrix"
    else:
        for expert in range(count):
            for name, shape, kind in _feed_forward(c, width, bias=False):
                yield f"experts.{expert}.{name}", shape, kind
    if moe.shared_experts:
        for name, shape, kind in _feed_forward(c, moe.shared_experts * width, bias=False):
            yield f"shared.{name}", shape, kind


def _linear(name: str, rows: int, columns: int, bias: bool = False) -> Iterator[Sized]:
    yield f"{name}.weight", (rows, columns), "matrix"
    if bias:
        yield f"{name}.bias", (rows,), "bias"


def _norm(norm: NormConfig, name: str, dim: int) -> Iterator[Sized]:
    yield f"{name}.weight", (dim,), "norm"
    if isinstance(norm, LayerNormConfig) and norm.bias:
        yield f"{name}.bias", (dim,), "norm"
