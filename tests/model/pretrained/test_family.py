"""No field of the transformer is lost on the way to a file without anybody having said so."""

from setpoint.model.attention.config import MLA
from setpoint.model.config import TransformerConfig
from setpoint.model.moe.config import MoE
from setpoint.model.pretrained.convert import EXPERTS, PLAIN, SIZES, UNCOMPARED, ConfigDocument
from setpoint.model.pretrained.families import FAMILIES

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
    "residual_init",
    "init_std_embedding",
    "init_std_output",
    # Of training; written where a family has it.
    "init_std",
    "dropout",
    "attention_dropout",
    "embedding_dropout",
    "embedding_noise",
)
NOT_WRITTEN_OF_EXPERTS = (
    "balance_loss", "sequence_balance_loss", "router_z_loss", "gradient_scale", "load_sequences",
    "packed", "implementation",
)  # fmt: skip


def test_every_field_is_written_fixed_or_named_as_without_effect() -> None:
    fields = set(TransformerConfig.__setpoint__.fields)
    assert fields == {*SIZES, *PLAIN, *NOT_WRITTEN}
    assert len(fields) == len(SIZES) + len(PLAIN) + len(NOT_WRITTEN)
    for family in FAMILIES.values():
        assert family.fixed.keys() <= {*PLAIN, *EXPERTS}
        read = family.read(ConfigDocument({}, "")).keys()
        of_sections = {path for path in read if "." in path}
        assert read - of_sections - {*UNCOMPARED} <= {*SIZES, *PLAIN}
        missing = {*SIZES} - read
        latent = {"kv_heads", "head_dim"} if "mla" in family.fixed else set()
        assert missing == latent | ({"rope_base"} if "positions" in family.fixed else set())


def test_every_field_of_experts_is_written_fixed_or_named_as_without_effect() -> None:
    written = {"moe.experts", "moe.top_k", "moe.expert_dim"}
    of_router = {"moe.router.normalize"}
    known = {*written, *EXPERTS, *(f"moe.{name}" for name in NOT_WRITTEN_OF_EXPERTS)} - of_router
    assert {f"moe.{name}" for name in MoE.__setpoint__.fields} == known
    latent = {f"mla.{name}" for name in MLA.__setpoint__.fields}
    for family in FAMILIES.values():
        read = family.read(ConfigDocument({}, "")).keys()
        assert written <= read if "moe" in family.fixed else not written & read
        assert latent <= read if "mla" in family.fixed else not latent & read
