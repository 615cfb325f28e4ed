"""The names that Llama gave to the tensors of a decoder, and most families have taken over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from setpoint.model.pretrained.pieces import Part, Piece, stacked

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig

PRE_NORMS = {"attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm"}
"""Our norms of a layer and theirs, where norms stand before attention and feed-forward."""

ALL_NORMS = {
    "attention_norm": "input_layernorm",
    "attention_output_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_output_norm": "post_feedforward_layernorm",
}
"""The same where they stand behind them, too."""

_ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}
_FEED_FORWARD = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}


def decoder_pieces(config: TransformerConfig, norms: Mapping[str, str] = PRE_NORMS) -> list[Piece]:
    """The tensors of a decoder with Llama's names."""
    pieces = [Piece("embedding.weight", "model.embed_tokens.weight")]
    for index in range(config.layers):
        ours, theirs = f"layers.{index}", f"model.layers.{index}"
        pieces += [Piece(f"{ours}.{a}.weight", f"{theirs}.{b}.weight") for a, b in norms.items()]
        pieces += _attention(config, f"{ours}.attention", f"{theirs}.self_attn")
        if config.moe is not None and config.moe.has_experts(index):
            pieces += _experts(config, f"{ours}.feed_forward", f"{theirs}.mlp")
        else:
            kinds = ("weight", "bias") if config.ffn_bias else ("weight",)
            pieces += [
                Piece(f"{ours}.feed_forward.{a}.{kind}", f"{theirs}.mlp.{b}.{kind}")
                for a, b in _FEED_FORWARD.items()
                for kind in kinds
            ]
    pieces.append(Piece("norm.weight", "model.norm.weight"))
    if not config.tie_embeddings:
        pieces.append(Piece("output.weight", "lm_head.weight"))
    return pieces


def _attention(config: TransformerConfig, ours: str, theirs: str) -> list[Piece]:
    query, other = config.heads * config.head_dim, config.kv_heads * config.head_dim
    sizes = {"query": query, "key": other, "value": other}
    pieces: list[Piece] = []
    for kind in ("weight", "bias") if config.qkv_bias else ("weight",):
        parts = [(f"{theirs}.{b}.{kind}", sizes[a]) for a, b in _ATTENTION.items()]
        if config.merge_qkv:
            pieces += stacked(f"{ours}.query_key_value.{kind}", parts)
        else:
            names = [f"{ours}.{a}.{kind}" for a in _ATTENTION]
            pieces += [Piece(a, b) for a, (b, _) in zip(names, parts, strict=True)]
    for kind in ("weight", "bias") if config.attention_output_bias else ("weight",):
        pieces.append(Piece(f"{ours}.output.{kind}", f"{theirs}.o_proj.{kind}"))
    if config.qk_norm:
        pieces.append(Piece(f"{ours}.query_norm.weight", f"{theirs}.q_norm.weight"))
        pieces.append(Piece(f"{ours}.key_norm.weight", f"{theirs}.k_norm.weight"))
    return pieces


def _experts(config: TransformerConfig, ours: str, theirs: str) -> list[Piece]:
    moe = config.moe
    assert moe is not None
    pieces = [Piece(f"{ours}.router.weight", f"{theirs}.gate.weight")]
    for a, b in _FEED_FORWARD.items():
        for expert in range(moe.experts):
            name = f"{theirs}.experts.{expert}.{b}.weight"
            if moe.packed:
                # Ours are (E, in, out), theirs (out, in) for each expert.
                packed = Part(0, expert)
                pieces.append(Piece(f"{ours}.experts.{a}", name, packed, transposed=True))
            else:
                pieces.append(Piece(f"{ours}.experts.{expert}.{a}.weight", name))
    return pieces
