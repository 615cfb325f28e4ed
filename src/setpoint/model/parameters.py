"""Parameters of a transformer, listed from its configuration alone, their sums, and its FLOPs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from setpoint.model.attention.config import Kind as AttentionKind
from setpoint.model.attention.selection import kind_of, kinds_of, reach
from setpoint.model.config import LayerNormConfig, NormConfig, TransformerConfig
from setpoint.shapes.parameter import Kind, Parameter, StagePart

if TYPE_CHECKING:
    from setpoint.model.config import ModelConfig
    from setpoint.model.moe.config import MoE

Sized = tuple[str, tuple[int, ...], Kind]
LAYER = "layers."


# The vocabulary: rows of the embedding and of the output matrix.


def embedding_rows(config: TransformerConfig, vocab_size: int) -> int:
    """Rows of the embedding and of the output matrix: vocab_size, or the tokenizer's rounded up."""
    if config.vocab_size is not None:
        return config.vocab_size
    step = config.vocab_multiple_of
    return step * -(-vocab_size // step)


def predicted_tokens(config: TransformerConfig, vocab_size: int) -> int:
    """Number of logits per position: the rows without those added by rounding up."""
    return vocab_size if config.vocab_size is None else config.vocab_size


def vocab_error(config: TransformerConfig, vocab_size: int) -> str | None:
    """Reason why a vocabulary does not fit a tokenizer with vocab_size tokens, or None."""
    if config.vocab_size is None or config.vocab_size >= vocab_size:
        return None
    return (
        f"{config.vocab_size} rows are too few for the {vocab_size} tokens of the tokenizer, so "
        f"the highest tokens would have no embedding"
    )


# The list of parameters.


def parameters_of(config: TransformerConfig, vocab_size: int) -> Iterator[Parameter]:
    """List the parameters of a transformer without building it, in the order of the module's."""
    for part, listed in _parts(config, embedding_rows(config, vocab_size)):
        prefix = f"{part}." if part.startswith(LAYER) else ""
        for name, shape, kind in listed:
            name = prefix + name
            yield Parameter(name, shape, kind, config.rate_multiplier(name, len(shape)))


def fused_parts_of(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    """Outputs of each projection in modules that stack several, by name."""
    if not config.merge_qkv or config.mla is not None:
        return {}
    query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
    names = (f"layers.{layer}.attention.query_key_value" for layer in range(config.layers))
    return dict.fromkeys(names, (query, key, key))


def _parts(c: TransformerConfig, rows: int) -> Iterator[tuple[str, Iterator[Sized]]]:
    """Parameters of the embedding, of each layer, and of the output with the norm before it."""
    yield "embedding", _embedding(c, rows)
    for layer in range(c.layers):
        yield f"{LAYER}{layer}", _block(c, layer)
    yield "output", _output(c, rows)


def _embedding(c: TransformerConfig, rows: int) -> Iterator[Sized]:
    yield "embedding.weight", (rows, c.dim), "embedding"
    if c.positions == "learned":
        yield "position_embedding.weight", (c.max_sequence_length, c.dim), "embedding"


def _output(c: TransformerConfig, rows: int) -> Iterator[Sized]:
    yield from _norm(c.norm, "norm", c.dim)
    if not c.tie_embeddings:
        yield "output.weight", (rows, c.dim), "output"


def _block(c: TransformerConfig, layer: int) -> Iterator[Sized]:
    before, after = c.norm_placement in ("pre", "both"), c.norm_placement in ("post", "both")
    if before:
        yield from _norm(c.norm, "attention_norm", c.dim)
    attention = _attention(c, layer) if c.mla is None else _latent(c)
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


def _attention(c: TransformerConfig, layer: int) -> Iterator[Sized]:
    query, key_value = c.heads * c.head_dim, c.kv_heads * c.head_dim
    if c.attention_sinks:
        yield "sinks", (c.heads,), "vector"
    if c.merge_qkv:
        yield from _linear("query_key_value", query + 2 * key_value, c.dim, c.qkv_bias)
    else:
        yield from _linear("query", query, c.dim, c.qkv_bias)
        yield from _linear("key", key_value, c.dim, c.qkv_bias)
        yield from _linear("value", key_value, c.dim, c.qkv_bias)
    if c.norms_queries(layer) and c.qk_norm_weights:
        sizes = (query, key_value) if c.qk_norm_across_heads else (c.head_dim, c.head_dim)
        yield from _norm(c.norm, "query_norm", sizes[0])
        yield from _norm(c.norm, "key_norm", sizes[1])
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
    if moe.bias:
        yield "router.logit_bias", (count,), "bias"
    if moe.packed:
        inner = ("gate", "up") if c.is_gated else ("up",)
        for name in inner:
            yield f"experts.{name}", (count, c.dim, width), "matrix"
        yield "experts.down", (count, width, c.dim), "matrix"
        if moe.bias:
            for name in inner:
                yield f"experts.{name}_bias", (count, width), "bias"
            yield "experts.down_bias", (count, c.dim), "bias"
    else:
        for expert in range(count):
            for name, shape, kind in _feed_forward(c, width, moe.bias):
                yield f"experts.{expert}.{name}", shape, kind
    if moe.shared_gate:
        yield "shared_gate.weight", (1, c.dim), "router"
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


# Sums over parameters.


def part_names(layers: int) -> list[str]:
    """Name the parts of a transformer, in the order in which tokens pass them."""
    return ["embedding", *(f"{LAYER}{layer}" for layer in range(layers)), "output"]


def part_of(name: str) -> str:
    """Name the part to which a parameter belongs."""
    first, _, tail = name.partition(".")
    if first == "layers":
        return LAYER + tail.partition(".")[0]
    return "embedding" if first in ("embedding", "position_embedding") else "output"


def units_around_layers(config: TransformerConfig) -> tuple[tuple[str, ...], ...]:
    """Modules before and after the layers with weights gathered together, in forward order.

    The second unit spans the loss, which may use the output matrix directly. Empty if the embedding
    is tied, because both the first operation and the loss need it.
    """
    if config.tie_embeddings:
        return ()
    learned = ("position_embedding",) if config.positions == "learned" else ()
    return ("embedding", *learned), ("norm", "output")


class ParameterCounts(NamedTuple):
    """Parameters of a model, or of a part of it.

    Arguments:
        active: parameters used for one token, counting top_k of the routed experts in each layer.
        in_products: parameters in matrix products for one token: all of `active` except norms,
            biases and lookups; a tied embedding counts because it is also the output matrix.
    """

    parameters: int
    active: int
    in_products: int


def _count(c: TransformerConfig, listed: Iterable[Sized]) -> ParameterCounts:
    routed = dense = in_products = 0
    for name, shape, kind in listed:
        size = prod(shape)
        if ".experts." in name:
            routed += size
            continue
        dense += size
        in_products += size if kind in ("matrix", "output", "router") else 0
    used = 0 if c.moe is None else routed * c.moe.top_k // c.moe.experts
    return ParameterCounts(dense + routed, dense + used, in_products + used)


def _counts_by_part(c: TransformerConfig, rows: int) -> dict[str, ParameterCounts]:
    """Counts of each part; the output's products include the matrix of tied embeddings."""
    counts = {part: _count(c, listed) for part, listed in _parts(c, rows)}
    if c.tie_embeddings:
        output = counts["output"]
        counts["output"] = output._replace(in_products=output.in_products + rows * c.dim)
    return counts


def count_parameters_of(config: TransformerConfig, vocab_size: int) -> ParameterCounts:
    """Count the parameters of a transformer; see `parameters_of`."""
    parts = _counts_by_part(config, embedding_rows(config, vocab_size)).values()
    return ParameterCounts(*map(sum, zip(*parts, strict=True)))


def part_sizes(
    config: TransformerConfig, *, vocab_size: int, sequence_length: int
) -> list[StagePart]:
    """Parameters of each part, and its FLOPs per token by the formula `palm`.

    FLOPs add up to `training_flops`. Parameters add up to those of the model, plus the matrix of
    tied embeddings, which both the first and the last part contain.

    Returns:
        the embedding, each layer, and the output with the norm before it.
    """
    rows = embedding_rows(config, vocab_size)
    sizes: list[StagePart] = []
    for name, counts in _counts_by_part(config, rows).items():
        parameters, products = counts.parameters, counts.in_products
        if name.startswith(LAYER):
            kind = kind_of(config, int(name.removeprefix(LAYER)))
            products += pair_size(config) * most_attended(config, kind, sequence_length)
        elif name == "output" and config.tie_embeddings:
            parameters += rows * config.dim
        sizes.append(StagePart(name, parameters, 6 * products))
    return sizes


def stage_sizes(
    config: ModelConfig, vocab_size: int, sequence_length: int
) -> list[StagePart] | None:
    """Sizes by which pipeline stages are balanced; None: parameter counts."""
    if not isinstance(config, TransformerConfig) or not config.parameters_known:
        return None
    return part_sizes(config, vocab_size=vocab_size, sequence_length=sequence_length)


# FLOPs.


def pair_size(c: TransformerConfig) -> int:
    """Number of elements in one query and one value, over all heads of a layer."""
    if c.mla is None:
        return c.heads * 2 * c.head_dim
    return c.heads * (c.mla.nope_head_dim + c.mla.rope_head_dim + c.mla.value_head_dim)


def most_attended(c: TransformerConfig, kind: AttentionKind, sequence_length: int) -> int:
    """Maximum number of positions that a query attends to in a layer of some kind."""
    return min(sequence_length, reach(c, kind) or sequence_length)


def causal_pairs(length: float, most: float, is_chunked: bool = False) -> float:
    """Number of query-key pairs under a causal mask.

    Arguments:
        most: size of the window or chunks; at most the length.
    """
    if is_chunked:
        chunks, rest = divmod(length, most)
        return (chunks * most * (most + 1) + rest * (rest + 1)) / 2
    return most * (most + 1) / 2 + (length - most) * most


def attended(c: TransformerConfig, sequence_length: int, is_causal: bool = False) -> float:
    """Elements of queries and values in the attention of all layers to a sequence.

    Returns:
        the sum over positions i = 1 .. S, which attend to min(S, W) positions each, or with
        is_causal to min(i, W), or in chunks to (i - 1) % W + 1.
    """
    length, pairs = sequence_length, 0
    for kind in kinds_of(c):
        most = most_attended(c, kind, length)
        seen = causal_pairs(length, most, kind == "chunked") if is_causal else length * most
        pairs += c.count_layers(kind) * seen
    return pair_size(c) * pairs


class Formula(NamedTuple):
    """A formula for FLOPs per token, and its terms."""

    text: str
    meaning: str


_HEADS = "H heads with queries of size Q and values of size V, S positions"
_PALM = "N parameters in matrix products of a token"

FORMULAS = {
    "palm": Formula(
        "6 N + 6 sum over layers of H (Q + V) min(S, W)",
        f"{_PALM}, {_HEADS}, a window or chunks of W; attention as if it were not causal (PaLM, "
        f"Chowdhery et al., 2022, appendix B)",
    ),
    "palm_causal": Formula(
        "6 N + 6 sum over layers of H (Q + V) / S * sum over i = 1 .. S of min(i, W)",
        f"{_PALM}, {_HEADS}, a window of W, in chunks (i - 1) % W + 1; palm with what a causal "
        f"mask leaves of attention",
    ),
    "all_parameters": Formula(
        "6 P + 6 L H (Q + V) S",
        f"P all parameters, L layers, {_HEADS}; embeddings, norms and experts that a token does "
        f"not choose count, and windows do not",
    ),
}
"""By the names that `tracking.flops` takes. All of them count a product and a sum as two, the
backward pass as twice the forward, and recomputation not at all."""


def training_flops(
    config: TransformerConfig, formula: str, *, vocab_size: int, sequence_length: int
) -> float:
    """Compute the floating-point operations for training on one token.

    Returns:
        an integer with `palm` and `all_parameters`; a mean over the positions with `palm_causal`.
    """
    counts = count_parameters_of(config, vocab_size)
    if formula == "all_parameters":
        return all_parameters(counts.parameters, config.layers * pair_size(config), sequence_length)
    if formula == "palm":
        return 6 * (counts.in_products + attended(config, sequence_length) // sequence_length)
    return 6 * (counts.in_products + attended(config, sequence_length, True) / sequence_length)


def all_parameters(parameters: int, pair_sizes: int, sequence_length: int) -> int:
    """Compute the formula `all_parameters`, which needs no configuration."""
    return 6 * parameters + 6 * pair_sizes * sequence_length
