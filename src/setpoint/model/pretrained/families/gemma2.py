"""Gemma 2: norms on both sides, soft caps, and a window in every other layer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from setpoint.model.config import RMSNormConfig
from setpoint.model.pretrained.decoder import ALL_NORMS, decoder_pieces
from setpoint.model.pretrained.document import Document
from setpoint.model.pretrained.families.llama import (
    even_heads,
    one_bias,
    read_decoder,
    write_decoder,
)
from setpoint.model.pretrained.family import (
    GATED,
    Family,
    Misfit,
    activation_name,
    unfit_activation,
)
from setpoint.model.pretrained.kinds import read_kinds, write_kinds
from setpoint.model.pretrained.pieces import Piece
from setpoint.model.pretrained.rope import read_rope, write_rope

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig


def read_gemma(document: Document, *, length: int, cap: float | None) -> dict[str, Any]:
    """The fields that Gemma 2 and 3 have in common."""
    old = document.value("hidden_act")
    if old is not None and not document.has("hidden_activation") and old != "gelu_pytorch_tanh":
        # transformers never reads this key, and computes gelu_pytorch_tanh.
        document.refuse("hidden_act", "contradicts hidden_activation, gelu_pytorch_tanh if absent")
    fields = read_decoder(
        document,
        kv_heads=4,
        head_dim=256,
        length=length,
        activation="hidden_activation",
        default_activation="gelu_pytorch_tanh",
        tied=True,
    )
    document.must_be(
        "use_bidirectional_attention", (None, False), "positions would see what comes after them"
    )
    bias = document.flag("attention_bias", False)
    scalar = document.number("query_pre_attn_scalar", 256)
    if scalar <= 0:
        document.refuse("query_pre_attn_scalar", "must be positive")
        scalar = 1.0
    scale = scalar**-0.5
    return {
        **fields,
        "norm": RMSNormConfig(zero_centered=True),
        "norm_placement": "both",
        "embedding_scale": math.sqrt(fields["dim"]),
        "attention_scale": None if scale == fields["head_dim"] ** -0.5 else scale,
        "logit_soft_cap": document.number("final_logit_softcapping", cap, optional=True),
        "qkv_bias": bias,
        "attention_output_bias": bias,
    }


def write_gemma(config: TransformerConfig) -> dict[str, Any]:
    """The keys for the same fields."""
    return {
        **write_decoder(config),
        "hidden_activation": activation_name(config, GATED),
        "query_pre_attn_scalar": query_scalar(config),
        "final_logit_softcapping": config.logit_soft_cap,
        "attention_bias": config.qkv_bias,
        "layer_types": write_kinds(config),
        # A model that does not slide needs a number all the same.
        "sliding_window": config.sliding_window or config.max_sequence_length,
        "use_bidirectional_attention": False,
    }


def query_scalar(config: TransformerConfig) -> int:
    """The whole number whose inverse root is the scale of attention."""
    scale = config.attention_scale
    return config.head_dim if scale is None else round(scale**-2)


def gemma_misfits(config: TransformerConfig) -> Iterator[Misfit]:
    """What neither Gemma 2 nor 3 can be, beyond fixed values."""
    yield from unfit_activation(config, GATED)
    yield from one_bias(config)
    yield from even_heads(config)
    if config.embedding_scale != math.sqrt(config.dim):
        yield Misfit("embedding_scale", f"{config.embedding_scale:g}", "sqrt(dim)")
    scale = config.attention_scale
    if scale is not None and not math.isclose(query_scalar(config) ** -0.5, scale, rel_tol=1e-12):
        yield Misfit("attention_scale", f"{scale:g}", "1 / sqrt(a whole number)")


GEMMA_WRITES = (
    "activation",
    "attention_scale",
    "logit_soft_cap",
    "attention_pattern",
    "sliding_window",
    "embedding_scale",
    "qkv_bias",
    "attention_output_bias",
    "rope_scaling",
)
"""The fields that Gemma 2 and 3 both write."""


class Gemma2(Family):
    """Gemma 2."""

    model_type = "gemma2"
    architecture = "Gemma2ForCausalLM"
    writes = (*GEMMA_WRITES, "attention_soft_cap")
    fixed: ClassVar[Mapping[str, object]] = {
        "norm": "rms_norm, zero-centered",
        "norm_placement": "both",
    }

    def read(self, document: Document) -> dict[str, Any]:
        """See `Family.read`."""
        fields = read_gemma(document, length=8192, cap=30.0)
        layers = fields["layers"]
        window = document.integer("sliding_window", 4096, optional=True)
        kinds = ["full" if index % 2 else "sliding" for index in range(layers)]
        return {
            **fields,
            **read_rope(document, fields["max_sequence_length"]),
            **read_kinds(document, layers, window, kinds),
            "attention_soft_cap": document.number("attn_logit_softcapping", 50.0, optional=True),
        }

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        """See `Family.write`."""
        return {
            **write_gemma(config),
            **write_rope(config),
            "attn_logit_softcapping": config.attention_soft_cap,
        }

    def misfits(self, config: TransformerConfig) -> Iterator[Misfit]:
        """See `Family.misfits`."""
        yield from super().misfits(config)
        yield from gemma_misfits(config)

    def pieces(self, config: TransformerConfig) -> list[Piece]:
        """See `Family.pieces`."""
        return decoder_pieces(config, ALL_NORMS)


FAMILY = Gemma2()
"""The family."""
