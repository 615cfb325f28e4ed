"""Mistral: Llama with a sliding window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from setpoint.model.pretrained.document import Document
from setpoint.model.pretrained.families.llama import read_decoder, write_decoder
from setpoint.model.pretrained.family import (
    GATED,
    Family,
    Misfit,
    activation_name,
    unfit_activation,
)
from setpoint.model.pretrained.kinds import layer_kinds, read_kinds
from setpoint.model.pretrained.rope import read_rope, write_rope

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig


class Mistral(Family):
    """Mistral, of which all layers slide or none does."""

    model_type = "mistral"
    architecture = "MistralForCausalLM"
    writes = ("activation", "rope_scaling", "attention_pattern", "sliding_window")

    def read(self, document: Document) -> dict[str, Any]:
        """See `Family.read`."""
        fields = read_decoder(document, kv_heads=8, length=131_072)
        layers = fields["layers"]
        window = document.integer("sliding_window", 4096, optional=True)
        kind = "full" if window is None else "sliding"
        if document.has("layer_types"):
            document.refuse("layer_types", "Mistral's layers are all alike")
        return {
            **fields,
            **read_rope(document, fields["max_sequence_length"]),
            **read_kinds(document, layers, window, [kind] * layers),
        }

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        """See `Family.write`."""
        return {
            **write_decoder(config),
            **write_rope(config),
            "hidden_act": activation_name(config, GATED),
            "sliding_window": config.sliding_window if "sliding" in layer_kinds(config) else None,
        }

    def misfits(self, config: TransformerConfig) -> Iterator[Misfit]:
        """See `Family.misfits`."""
        yield from super().misfits(config)
        yield from unfit_activation(config, GATED)
        yield from all_alike(config)


def all_alike(config: TransformerConfig) -> Iterator[Misfit]:
    """The misfit of a model of which some layers slide and others do not."""
    if len(set(layer_kinds(config))) > 1:
        pattern = ", ".join(config.attention_pattern)
        yield Misfit("attention_pattern", f"[{pattern}]", "[full] or [sliding]")


FAMILY = Mistral()
"""The family."""
