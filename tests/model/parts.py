"""Stages of a pipeline, made as those who write pipelines by hand make them."""

from collections.abc import Sequence

from setpoint.model.initialize import initialize
from setpoint.model.transformer import Transformer

from .small import VOCAB, small_config


def part(layers_here: Sequence[int], *, seed: int, **changes) -> Transformer:
    """Some layers of a model; the first ones come with the embedding, the last with the output."""
    config = small_config(**changes)
    model = config.build(vocab_size=VOCAB)
    for layer in range(config.layers):
        if layer not in layers_here:
            del model.layers[str(layer)]
    is_last = layers_here[-1] == config.layers - 1
    if layers_here[0] != 0:
        model.position_embedding = None
        if not (is_last and config.tie_embeddings):
            model.embedding = None
    if not is_last:
        model.norm = model.output = None
    initialize(model, seed)
    return model
