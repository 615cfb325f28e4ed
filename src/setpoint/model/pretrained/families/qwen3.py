"""Qwen 3: Llama with norms of queries and keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from setpoint.model.pretrained.document import Document
from setpoint.model.pretrained.families.llama import one_bias, read_decoder, write_decoder
from setpoint.model.pretrained.families.qwen2 import read_windows, write_windows
from setpoint.model.pretrained.family import (
    GATED,
    Family,
    Misfit,
    activation_name,
    unfit_activation,
)
from setpoint.model.pretrained.rope import read_rope, write_rope

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig


class Qwen3(Family):
    """Qwen 3 without experts."""

    model_type = "qwen3"
    architecture = "Qwen3ForCausalLM"
    writes = (
        "activation",
        "rope_scaling",
        "attention_pattern",
        "sliding_window",
        "qkv_bias",
        "attention_output_bias",
    )
    fixed: ClassVar[Mapping[str, object]] = {"qk_norm": True}

    def read(self, document: Document) -> dict[str, Any]:
        """See `Family.read`."""
        fields = read_decoder(document, kv_heads=32, head_dim=128, length=32_768)
        bias = document.flag("attention_bias", False)
        return {
            **fields,
            **read_rope(document, fields["max_sequence_length"]),
            **read_windows(document, fields["layers"]),
            "qk_norm": True,
            "qkv_bias": bias,
            "attention_output_bias": bias,
        }

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        """See `Family.write`."""
        return {
            **write_decoder(config),
            **write_rope(config),
            **write_windows(config),
            "hidden_act": activation_name(config, GATED),
            "attention_bias": config.qkv_bias,
        }

    def misfits(self, config: TransformerConfig) -> Iterator[Misfit]:
        """See `Family.misfits`."""
        yield from super().misfits(config)
        yield from unfit_activation(config, GATED)
        yield from one_bias(config)


FAMILY = Qwen3()
"""The family."""
