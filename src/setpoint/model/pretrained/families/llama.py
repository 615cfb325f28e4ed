"""Llama 1 to 3, and what shares its form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from setpoint.model.pretrained.document import Document
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


def read_decoder(
    document: Document,
    *,
    kv_heads: int | None,
    head_dim: int | None = None,
    length: int,
    activation: str = "hidden_act",
    default_activation: str = "silu",
    tied: bool = False,
) -> dict[str, Any]:
    """The fields that Llama and all that follow it have in common, but for positions.

    Arguments:
        kv_heads: what a file without num_key_value_heads means; None: as many as heads.
        head_dim: what a file without head_dim means; None: hidden_size / heads.
    """
    dim, heads = document.integer("hidden_size"), document.integer("num_attention_heads")
    kv_heads = document.integer("num_key_value_heads", kv_heads, optional=True) or heads
    head_dim = document.integer("head_dim", head_dim, optional=True) or dim // heads
    return {
        "vocab_size": document.integer("vocab_size"),
        "max_sequence_length": document.integer("max_position_embeddings", length),
        "dim": dim,
        "layers": document.integer("num_hidden_layers"),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "ffn_dim": document.integer("intermediate_size"),
        "activation": document.choice(activation, default_activation, GATED),
        "norm_eps": document.number("rms_norm_eps", 1e-6),
        "init_std": document.number("initializer_range", 0.02),
        "residual_init": "plain",
        "tie_embeddings": document.flag("tie_word_embeddings", tied),
        "attention_dropout": document.number("attention_dropout", 0.0, optional=True) or 0.0,
    }


def write_decoder(config: TransformerConfig) -> dict[str, Any]:
    """The keys for the same fields, but for the activation."""
    return {
        "hidden_size": config.dim,
        "intermediate_size": config.ffn_dim,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_sequence_length,
        "rms_norm_eps": config.norm_eps,
        # Some classes take no more than 1, and it has no effect on weights that are there.
        "initializer_range": min(config.init_std, 1.0),
        "tie_word_embeddings": config.tie_embeddings,
        "attention_dropout": config.attention_dropout,
    }


class Llama(Family):
    """Llama 1 to 3."""

    model_type = "llama"
    architecture = "LlamaForCausalLM"
    writes = ("activation", "ffn_bias", "qkv_bias", "attention_output_bias", "rope_scaling")

    def read(self, document: Document) -> dict[str, Any]:
        """See `Family.read`."""
        fields = read_decoder(document, kv_heads=None, length=2048)
        bias = document.flag("attention_bias", False)
        return {
            **fields,
            **read_rope(document, fields["max_sequence_length"]),
            "qkv_bias": bias,
            "attention_output_bias": bias,
            "ffn_bias": document.flag("mlp_bias", False),
        }

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        """See `Family.write`."""
        return {
            **write_decoder(config),
            **write_rope(config),
            "hidden_act": activation_name(config, GATED),
            "attention_bias": config.qkv_bias,
            "mlp_bias": config.ffn_bias,
        }

    def misfits(self, config: TransformerConfig) -> Iterator[Misfit]:
        """See `Family.misfits`."""
        yield from super().misfits(config)
        yield from unfit_activation(config, GATED)
        yield from one_bias(config)
        yield from even_heads(config)


def even_heads(config: TransformerConfig) -> Iterator[Misfit]:
    """The misfit of a width that heads do not divide, which some classes of transformers refuse."""
    if config.dim % config.heads:
        yield Misfit("heads", str(config.heads), f"a divisor of dim = {config.dim}")


def one_bias(config: TransformerConfig) -> Iterator[Misfit]:
    """The misfit of attention of which some projections have biases and others have none."""
    if config.qkv_bias != config.attention_output_bias:
        given, wanted = str(config.attention_output_bias).lower(), str(config.qkv_bias).lower()
        yield Misfit("attention_output_bias", given, f"{wanted}, as qkv_bias")


FAMILY = Llama()
"""The family."""
