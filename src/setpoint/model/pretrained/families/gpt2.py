"""GPT-2: layer norm with bias, learned positions, and matrices that lie transposed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from setpoint.model.config import LayerNormConfig
from setpoint.model.pretrained.document import Document
from setpoint.model.pretrained.family import (
    UNGATED,
    Family,
    Misfit,
    activation_name,
    unfit_activation,
)
from setpoint.model.pretrained.pieces import Part, Piece

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig

_NORMS = {"attention_norm": "ln_1", "feed_forward_norm": "ln_2"}
_HEADS_OF_OTHER_TASKS = (
    "summary_type",
    "summary_use_proj",
    "summary_activation",
    "summary_proj_to_labels",
    "summary_first_dropout",
)


class GPT2(Family):
    """GPT-2."""

    model_type = "gpt2"
    architecture = "GPT2LMHeadModel"
    base = "transformer."
    writes = ("activation", "attention_scale")
    fixed: ClassVar[Mapping[str, object]] = {
        "positions": "learned",
        "norm": "layer_norm",
        "ffn_bias": True,
        "qkv_bias": True,
        "attention_output_bias": True,
    }
    # The causal mask, which the first version saved.
    surplus = (r"h\.\d+\.attn\.(bias|masked_bias)",)

    def read(self, document: Document) -> dict[str, Any]:
        """See `Family.read`."""
        dim, heads = document.integer("n_embd"), document.integer("n_head")
        length = document.integer("n_positions", 1024)
        # The old name of n_positions, still in old files.
        document.must_be("n_ctx", (None, length), "contradicts n_positions")
        document.must_be(
            "scale_attn_by_inverse_layer_idx", (False,), "scales each layer differently"
        )
        # The order of two products, and the precision of a sum.
        document.value("reorder_and_upcast_attn")
        for name in _HEADS_OF_OTHER_TASKS:
            document.value(name)
        return {
            "vocab_size": document.integer("vocab_size"),
            "max_sequence_length": length,
            "dim": dim,
            "layers": document.integer("n_layer"),
            "heads": heads,
            "kv_heads": heads,
            "head_dim": dim // heads,
            "ffn_dim": document.integer("n_inner", None) or 4 * dim,
            "activation": document.choice("activation_function", "gelu_new", UNGATED),
            "positions": "learned",
            "norm": LayerNormConfig(bias=True),
            "norm_eps": document.number("layer_norm_epsilon", 1e-5),
            "init_std": document.number("initializer_range", 0.02),
            "tie_embeddings": document.flag("tie_word_embeddings", True),
            "attention_scale": None if document.flag("scale_attn_weights", True) else 1.0,
            "dropout": document.number("resid_pdrop", 0.1),
            "attention_dropout": document.number("attn_pdrop", 0.1),
            "embedding_dropout": document.number("embd_pdrop", 0.1),
            "ffn_bias": True,
            "qkv_bias": True,
            "attention_output_bias": True,
        }

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        """See `Family.write`."""
        return {
            "n_embd": config.dim,
            "n_layer": config.layers,
            "n_head": config.heads,
            "n_inner": config.ffn_dim,
            "n_positions": config.max_sequence_length,
            "activation_function": activation_name(config, UNGATED),
            "layer_norm_epsilon": config.norm_eps,
            "initializer_range": config.init_std,
            "tie_word_embeddings": config.tie_embeddings,
            "scale_attn_weights": config.attention_scale != 1.0,
            "resid_pdrop": config.dropout,
            "attn_pdrop": config.attention_dropout,
            "embd_pdrop": config.embedding_dropout,
        }

    def misfits(self, config: TransformerConfig) -> Iterator[Misfit]:
        """See `Family.misfits`."""
        yield from super().misfits(config)
        yield from unfit_activation(config, UNGATED)
        if config.kv_heads != config.heads:
            yield Misfit("kv_heads", str(config.kv_heads), f"{config.heads}, as heads")
        if config.heads * config.head_dim != config.dim:
            yield Misfit("head_dim", str(config.head_dim), "dim / heads")
        scale = config.attention_scale
        if scale not in (None, 1.0, config.head_dim**-0.5):
            yield Misfit("attention_scale", f"{scale:g}", "null or 1")

    def pieces(self, config: TransformerConfig) -> list[Piece]:
        """See `Family.pieces`."""
        pieces = [
            Piece("embedding.weight", "transformer.wte.weight"),
            Piece("position_embedding.weight", "transformer.wpe.weight"),
        ]
        for index in range(config.layers):
            ours, theirs = f"layers.{index}", f"transformer.h.{index}"
            for kind in ("weight", "bias"):
                turned = kind == "weight"
                pieces += [
                    Piece(f"{ours}.{a}.{kind}", f"{theirs}.{b}.{kind}") for a, b in _NORMS.items()
                ]
                pieces += _merged(config, f"{ours}.attention", f"{theirs}.attn.c_attn", kind)
                pieces += [
                    Piece(f"{ours}.{a}.{kind}", f"{theirs}.{b}.{kind}", transposed=turned)
                    for a, b in (
                        ("attention.output", "attn.c_proj"),
                        ("feed_forward.up", "mlp.c_fc"),
                        ("feed_forward.down", "mlp.c_proj"),
                    )
                ]
        pieces += [Piece(f"norm.{k}", f"transformer.ln_f.{k}") for k in ("weight", "bias")]
        if not config.tie_embeddings:
            pieces.append(Piece("output.weight", "lm_head.weight"))
        return pieces


def _merged(config: TransformerConfig, ours: str, theirs: str, kind: str) -> list[Piece]:
    """Queries, keys and values, which lie side by side in one matrix of theirs."""
    turned = kind == "weight"
    if config.merge_qkv:
        name = f"{ours}.query_key_value.{kind}"
        return [Piece(name, f"{theirs}.{kind}", transposed=turned)]
    side = 1 if turned else 0
    return [
        Piece(
            f"{ours}.{name}.{kind}",
            f"{theirs}.{kind}",
            of_theirs=Part(side, index * config.dim, config.dim),
            transposed=turned,
        )
        for index, name in enumerate(("query", "key", "value"))
    ]


FAMILY = GPT2()
"""The family."""
