"""No field of the transformer is lost on the way to a file without anybody having said so."""

from __future__ import annotations

from setpoint.model.config import TransformerConfig
from setpoint.model.moe.config import MoE
from setpoint.model.pretrained.families import FAMILIES, family_named, qwen3_moe
from setpoint.model.pretrained.family import PLAIN, SIZES

# Fields that do not change the logits of finished weights: of the transformer, and of a mixture.
NOT_WRITTEN = (
    # How the weights lie in memory, and what computes them.
    "merge_qkv",
    "attention_backend",
    "vocab_size",
    "vocab_multiple_of",
    # How ffn_dim was found, where the weights came from, and how they started.
    "ffn_multiplier",
    "ffn_multiple_of",
    "pretrained",
    "adapters",
    "residual_init",
    # Of training; written where a family has it.
    "init_std",
    "dropout",
    "attention_dropout",
    "embedding_dropout",
)
NOT_WRITTEN_OF_EXPERTS = (
    "sequence_balance_loss",
    "router_z_loss",
    "gradient_scale",
    "load_sequences",
    "packed",
    "implementation",
)


def test_every_field_is_written_fixed_or_named_as_without_effect() -> None:
    fields = set(TransformerConfig.__setpoint__.fields)
    assert fields == {*SIZES, *PLAIN, *NOT_WRITTEN}
    assert len(fields) == len(SIZES) + len(PLAIN) + len(NOT_WRITTEN)
    for name in FAMILIES:
        family = family_named(name)
        assert family.model_type == name
        assert {*family.writes, *family.fixed} <= PLAIN.keys()
        assert not {*family.writes} & {*family.fixed}


def test_every_field_of_experts_is_written_fixed_or_named_as_without_effect() -> None:
    written = {"experts", "top_k", "every", "first_dense", "expert_dim", "router", "balance_loss"}
    known = {*written, *qwen3_moe.FIXED, *NOT_WRITTEN_OF_EXPERTS}
    assert set(MoE.__setpoint__.fields) == known
