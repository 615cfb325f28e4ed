"""How large a transformer is, and how much it computes, from its configuration alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from setpoint.model.config import Transformer


class ModelSize(NamedTuple):
    """Exact counts for one configuration.

    Arguments:
        embedding: parameters of the embedding.
        attention: parameters of the four projections of all layers.
        feed_forward: parameters of the three matrices of all layers.
        norm: parameters of all norms.
        output: parameters of the output matrix; 0 if it is the embedding.
        parameters: all of them.
        flops_per_token: floating point operations to train on one token.
    """

    embedding: int
    attention: int
    feed_forward: int
    norm: int
    output: int
    parameters: int
    flops_per_token: int


def estimate_size(config: Transformer, *, vocab_size: int, sequence_length: int) -> ModelSize:
    """Count the parameters of a transformer and its training FLOPs per token.

    FLOPs per token = 6 N + 12 L H Q S (PaLM, Chowdhery et al., 2022, appendix B): N parameters in
    matrix products (all but the norms and the lookup in the embedding; a tied embedding counts, as
    it is the output matrix, too), L layers, H heads of size Q, S positions. It counts a product
    and a sum as two, the backward pass as twice the forward, and, as is the custom, attention as
    if it were not causal; recomputation is not counted.

    Arguments:
        config: a resolved configuration.
        vocab_size: number of different tokens.
        sequence_length: positions in each training sequence.

    Returns:
        The counts; `parameters` equals `count_parameters` of the built module.
    """
    c = config
    embedding = vocab_size * c.dim
    attention = c.layers * 2 * c.dim * c.head_dim * (c.heads + c.kv_heads)
    feed_forward = c.layers * 3 * c.dim * c.ffn_dim
    norm = (2 * c.layers + 1) * c.dim
    output = 0 if c.tie_embeddings else embedding
    in_products = attention + feed_forward + embedding
    return ModelSize(
        embedding=embedding,
        attention=attention,
        feed_forward=feed_forward,
        norm=norm,
        output=output,
        parameters=embedding + attention + feed_forward + norm + output,
        flops_per_token=6 * in_products + 12 * c.layers * c.heads * c.head_dim * sequence_length,
    )
