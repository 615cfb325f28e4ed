"""The named formulas of how many floating point operations it takes to train on a token."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from setpoint.model.size import attended_causally, estimate_size, pair_size

if TYPE_CHECKING:
    from setpoint.model.config import Transformer


class Formula(NamedTuple):
    """What a number of operations was computed by."""

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
    config: Transformer, formula: str, *, vocab_size: int, sequence_length: int
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
