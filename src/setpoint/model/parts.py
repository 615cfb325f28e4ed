"""What each part of a transformer holds and takes, from its configuration alone."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import TYPE_CHECKING

from setpoint.model.config import TransformerConfig
from setpoint.model.parameters import parameters_of
from setpoint.model.size import pair_size, unknown_size, window_of
from setpoint.shapes.protocols import StagePart

if TYPE_CHECKING:
    from setpoint.model.config import ModelConfig

LAYER = "layers."


def part_names(layers: int) -> list[str]:
    """Name the parts of a transformer, in the order in which tokens go through them."""
    return ["embedding", *(f"{LAYER}{layer}" for layer in range(layers)), "output"]


def units_around_layers(config: TransformerConfig) -> tuple[tuple[str, ...], ...]:
    """Modules before and behind the layers whose weights are gathered together, in forward order.

    The second spans the loss, which may multiply with the output matrix by itself. None where the
    embedding is tied: the first operation and the loss both need it.
    """
    if config.tie_embeddings:
        return ()
    learned = ("position_embedding",) if config.positions == "learned" else ()
    return ("embedding", *learned), ("norm", "output")


def part_sizes(
    config: TransformerConfig, *, vocab_size: int, sequence_length: int
) -> list[StagePart]:
    """Count the parameters of each part, and its FLOPs per token by the formula `palm`.

    FLOPs add up to `estimate_size(...).flops_per_token`; parameters to all of the model, and the
    matrix of tied embeddings once more, since the first and the last part both hold it.

    Arguments:
        config: a resolved configuration whose size is known; see `unknown_size`.

    Returns:
        the embedding, each layer, and the output with the norm before it.
    """
    held: Counter[str] = Counter()
    in_products: Counter[str] = Counter()
    for name, shape, kind, *_ in parameters_of(config, vocab_size):
        part, size = part_of(name), prod(shape)
        held[part] += size
        if kind in ("matrix", "output", "router"):
            chosen = config.moe if ".experts." in name else None
            # Experts that a token does not choose take no time.
            used = size if chosen is None else size * chosen.top_k // chosen.experts
            in_products[part] += used
        if config.tie_embeddings and name == "embedding.weight":
            held["output"] += size
            in_products["output"] += size
    pattern = config.attention_pattern
    for layer in range(config.layers):
        sliding = pattern[layer % len(pattern)] == "sliding"
        reach = window_of(config, sequence_length) if sliding else sequence_length
        in_products[f"{LAYER}{layer}"] += pair_size(config) * reach
    return [
        StagePart(name, held[name], 6 * in_products[name]) for name in part_names(config.layers)
    ]


def stage_sizes(
    config: ModelConfig, vocab_size: int, sequence_length: int
) -> list[StagePart] | None:
    """Sizes by which the stages of a pipeline are balanced; None: by their parameters."""
    if not isinstance(config, TransformerConfig) or unknown_size(config) is not None:
        return None
    return part_sizes(config, vocab_size=vocab_size, sequence_length=sequence_length)


def part_of(name: str) -> str:
    """Name the part that a parameter belongs to."""
    first, _, rest = name.partition(".")
    if first == "layers":
        return LAYER + rest.partition(".")[0]
    return "embedding" if first in ("embedding", "position_embedding") else "output"
