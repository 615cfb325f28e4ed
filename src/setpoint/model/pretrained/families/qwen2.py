"""Qwen 2 and 2.5: Llama with biases on queries, keys and values, and windows in upper layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from setpoint.model.pretrained.document import Document
from setpoint.model.pretrained.families.llama import read_decoder, write_decoder
from setpoint.model.pretrained.family import (
    GATED,
    Family,
    Misfit,
    activation_name,
    unfit_activation,
)
from setpoint.model.pretrained.kinds import layer_kinds, read_kinds, write_kinds
from setpoint.model.pretrained.rope import read_rope, write_rope

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig


def read_windows(document: Document, layers: int) -> dict[str, Any]:
    """The fields for windows, which count only with use_sliding_window.

    Returns:
        `attention_pattern` and `sliding_window`.
    """
    window = document.integer("sliding_window", 4096, optional=True)
    first = document.integer("max_window_layers", 28, at_least=0)
    if not document.flag("use_sliding_window", False):
        window = None
    kinds = ["sliding" if window and index >= first else "full" for index in range(layers)]
    return read_kinds(document, layers, window, kinds)


def write_windows(config: TransformerConfig) -> dict[str, Any]:
    """The keys for windows."""
    kinds = layer_kinds(config)
    slides = "sliding" in kinds
    # Older versions read max_window_layers and not layer_types, and so can the usual form.
    first = kinds.index("sliding") if slides else config.layers
    return {
        "use_sliding_window": slides,
        "sliding_window": config.sliding_window if slides else None,
        "max_window_layers": first,
        "layer_types": write_kinds(config),
    }


class Qwen2(Family):
    """Qwen 2 and 2.5."""

    model_type = "qwen2"
    architecture = "Qwen2ForCausalLM"
    writes = ("activation", "rope_scaling", "attention_pattern", "sliding_window")
    fixed: ClassVar[Mapping[str, object]] = {"qkv_bias": True}

    def read(self, document: Document) -> dict[str, Any]:
        """See `Family.read`."""
        fields = read_decoder(document, kv_heads=32, length=32_768)
        return {
            **fields,
            **read_rope(document, fields["max_sequence_length"]),
            **read_windows(document, fields["layers"]),
            "qkv_bias": True,
        }

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        """See `Family.write`."""
        return {
            **write_decoder(config),
            **write_rope(config),
            **write_windows(config),
            "hidden_act": activation_name(config, GATED),
        }

    def misfits(self, config: TransformerConfig) -> Iterator[Misfit]:
        """See `Family.misfits`."""
        yield from super().misfits(config)
        yield from unfit_activation(config, GATED)


FAMILY = Qwen2()
"""The family."""
