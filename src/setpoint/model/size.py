"""Rows of the embedding, parameters and FLOPs of a transformer, from its configuration alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from setpoint.config import SetpointError
from setpoint.model.config import LayerNormConfig

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig


class ModelSize(NamedTuple):
    """Exact counts for one configuration.

    Arguments:
        embedding: parameters of the embeddings, those of positions included.
        attention: parameters of the attention of all layers, norms inside it included.
        feed_forward: parameters of the feed-forward networks of all layers, experts and routers
            included.
        norm: parameters of the norms of the residual stream.
        output: parameters of the output matrix; 0 if it is the embedding.
        active: those that take part in computing one token: of the experts that tokens choose
            among, top_k in each layer.
        in_products: those that stand in matrix products of one token: all of `active` but norms,
            biases and lookups; a tied embedding counts, as it is the output matrix, too.
        flops_per_token: floating point operations to train on one token, by the formula `palm`.
    """

    embedding: int
    attention: int
    feed_forward: int
    norm: int
    output: int
    parameters: int
    active: int
    in_products: int
    flops_per_token: int


def unknown_size(config: TransformerConfig) -> str | None:
    """Say why the parameters of a configuration cannot be counted without building it.

    Returns:
        The reason; None where they can.
    """
    if config.parameters_known:
        return None
    return "the number of parameters, since only the norm itself (model.norm) knows how many it has"


def estimate_size(config: TransformerConfig, *, vocab_size: int, sequence_length: int) -> ModelSize:
    """Count the parameters of a transformer and its training FLOPs per token.

    FLOPs per token = 6 N + 6 sum over layers of H (Q + V) min(S, W) (PaLM, Chowdhery et al., 2022,
    appendix B): N parameters in matrix products (all but norms, biases, the lookups in embeddings,
    and experts that a token does not choose; a tied embedding counts, as it is the output matrix,
    too), H heads with queries of size Q and values of size V, S positions, a window of W. It counts
    a product and a sum as two, the backward pass as twice the forward, and, as is the custom,
    attention as if it were not causal; recomputation is not counted.

    Returns:
        The counts; `parameters` equals `count_parameters` of the built module.
    """
    c = config
    rows = embedding_rows(c, vocab_size)
    learned = c.max_sequence_length if c.positions == "learned" else 0
    embedding = (rows + learned) * c.dim
    output = 0 if c.tie_embeddings else rows * c.dim
    attention, mixing = _attention(c) if c.mla is None else _mla(c)
    feed_forward, idle, expanding = _feed_forward(c)
    norms = 4 if c.norm_placement == "both" else 2
    norm = (norms * c.layers + 1) * _norm(c, c.dim)
    parameters = embedding + attention + feed_forward + norm + output
    in_products = mixing + expanding + rows * c.dim
    return ModelSize(
        embedding=embedding,
        attention=attention,
        feed_forward=feed_forward,
        norm=norm,
        output=output,
        parameters=parameters,
        active=parameters - idle,
        in_products=in_products,
        flops_per_token=6 * (in_products + attended(c, sequence_length)),
    )


def _norm(c: TransformerConfig, dim: int) -> int:
    return 2 * dim if isinstance(c.norm, LayerNormConfig) and c.norm.bias else dim


def _attention(c: TransformerConfig) -> tuple[int, int]:
    """Parameters of all layers, and those in matrix products."""
    query, key_value = c.heads * c.head_dim, 2 * c.kv_heads * c.head_dim
    matrices = c.dim * (query + key_value) + query * c.dim
    biases = c.qkv_bias * (query + key_value) + c.attention_output_bias * c.dim
    norms = 2 * _norm(c, c.head_dim) if c.qk_norm else 0
    return c.layers * (matrices + biases + norms), c.layers * matrices


def _mla(c: TransformerConfig) -> tuple[int, int]:
    """The same of latent attention."""
    m = c.mla
    assert m is not None
    query = c.heads * (m.nope_head_dim + m.rope_head_dim)
    matrices = c.dim * (m.kv_rank + m.rope_head_dim)
    matrices += m.kv_rank * c.heads * (m.nope_head_dim + m.value_head_dim)
    matrices += c.heads * m.value_head_dim * c.dim
    matrices += c.dim * query if m.query_rank is None else m.query_rank * (c.dim + query)
    norms = _norm(c, m.kv_rank) + (0 if m.query_rank is None else _norm(c, m.query_rank))
    biases = c.attention_output_bias * c.dim
    return c.layers * (matrices + norms + biases), c.layers * matrices


def _feed_forward(c: TransformerConfig) -> tuple[int, int, int]:
    """Parameters of all layers, those that a token does not use, and those in matrix products."""
    projections = 3 if c.is_gated else 2
    matrices = projections * c.dim * c.ffn_dim
    biases = c.ffn_bias * ((projections - 1) * c.ffn_dim + c.dim)
    moe = c.moe
    if moe is None:
        return c.layers * (matrices + biases), 0, c.layers * matrices
    sparse = moe.layers_with_experts(c.layers)
    dense = c.layers - sparse
    expert = projections * c.dim * moe.width(c.ffn_dim)
    always = c.dim * moe.experts + moe.shared_experts * expert
    return (
        dense * (matrices + biases) + sparse * (always + moe.experts * expert),
        sparse * (moe.experts - moe.top_k) * expert,
        dense * matrices + sparse * (always + moe.top_k * expert),
    )


def attended(c: TransformerConfig, sequence_length: int) -> int:
    """How much of queries and values one position meets in the attention of all layers."""
    sliding = c.count_layers("sliding")
    reach = (c.layers - sliding) * sequence_length + sliding * window_of(c, sequence_length)
    return pair_size(c) * reach


def attended_causally(c: TransformerConfig, sequence_length: int) -> int:
    """The same of all positions of a sequence, each of which meets itself and those before it.

    Returns:
        elements, summed over the positions i = 1 .. S, which meet min(i, W) each.
    """
    sliding = c.count_layers("sliding")
    window = window_of(c, sequence_length)
    full = sequence_length * (sequence_length + 1) // 2
    slid = window * (window + 1) // 2 + (sequence_length - window) * window
    return pair_size(c) * ((c.layers - sliding) * full + sliding * slid)


def pair_size(c: TransformerConfig) -> int:
    """Elements of a query and a value of all heads of a layer."""
    if c.mla is None:
        return c.heads * 2 * c.head_dim
    return c.heads * (c.mla.nope_head_dim + c.mla.rope_head_dim + c.mla.value_head_dim)


def window_of(c: TransformerConfig, sequence_length: int) -> int:
    """How many positions of a sequence a layer with a window sees at most."""
    window = c.sliding_window
    return sequence_length if window is None else min(sequence_length, window)


def embedding_rows(config: TransformerConfig, vocab_size: int) -> int:
    """Count the rows of the embedding and of the output matrix.

    Arguments:
        vocab_size: how many tokens the tokenizer has.

    Returns:
        vocab_size of the configuration, or else the tokenizer's rounded up.
    """
    if config.vocab_size is not None:
        return config.vocab_size
    step = config.vocab_multiple_of
    return step * -(-vocab_size // step)


def predicted_tokens(config: TransformerConfig, vocab_size: int) -> int:
    """Count the logits of one position: all rows that were asked for, none of those rounded up to.

    Arguments:
        vocab_size: how many tokens the tokenizer has.
    """
    return vocab_size if config.vocab_size is None else config.vocab_size


def vocab_error(config: TransformerConfig, vocab_size: int) -> str | None:
    """Reason why a vocabulary does not fit the tokenizer, or None.

    Arguments:
        vocab_size: how many tokens the tokenizer has.
    """
    if config.vocab_size is None or config.vocab_size >= vocab_size:
        return None
    return (
        f"{config.vocab_size} rows do not hold the {vocab_size} tokens of the tokenizer, the "
        f"highest of which would have no embedding"
    )


def require_fit(config: TransformerConfig, vocab_size: int) -> None:
    """Refuse a vocabulary that does not hold the tokenizer's.

    Arguments:
        vocab_size: how many tokens the tokenizer has.

    Raises:
        SetpointError: it does not.
    """
    reason = vocab_error(config, vocab_size)
    if reason is not None:
        raise SetpointError(
            f"model.vocab_size = {config.vocab_size}: {reason}; valid: {vocab_size} or more, or "
            f"null for as many as there are"
        )


class Formula(NamedTuple):
    """A formula of FLOPs per token and its terms."""

    text: str
    meaning: str


_HEADS = "H heads with queries of size Q and values of size V, S positions"
_PALM = "N parameters in matrix products of a token"

FORMULAS = {
    "palm": Formula(
        "6 N + 6 sum over layers of H (Q + V) min(S, W)",
        f"{_PALM}, {_HEADS}, a window of W; attention as if it were not causal (PaLM, Chowdhery et "
        f"al., 2022, appendix B)",
    ),
    "palm_causal": Formula(
        "6 N + 6 sum over layers of H (Q + V) / S * sum over i = 1 .. S of min(i, W)",
        f"{_PALM}, {_HEADS}, a window of W; palm with what a causal mask leaves of attention",
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
    """Compute how many operations it takes to train on a token.

    Returns:
        the number; a mean over the positions with `palm_causal`.
    """
    size = estimate_size(config, vocab_size=vocab_size, sequence_length=sequence_length)
    if formula == "palm":
        return size.flops_per_token
    if formula == "palm_causal":
        attention = attended_causally(config, sequence_length) / sequence_length
        return 6 * (size.in_products + attention)
    return all_parameters(size.parameters, config.layers * pair_size(config), sequence_length)


def all_parameters(parameters: int, pair_sizes: int, sequence_length: int) -> int:
    """The formula `all_parameters`, which needs the least."""
    return 6 * parameters + 6 * pair_sizes * sequence_length
