"""Qwen 3 with a mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from setpoint.model.moe.config import MoE, SoftmaxTopK
from setpoint.model.pretrained.document import Document
from setpoint.model.pretrained.families.llama import one_bias, read_decoder, write_decoder
from setpoint.model.pretrained.families.mistral import all_alike
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


FIXED = {
    "shared_experts": 0,
    "route_scale": 1.0,
    "groups": 1,
    "top_groups": 1,
    "capacity_factor": None,
}
"""What a mixture must be, where the family has no keys for it."""


class Qwen3Moe(Family):
    """Qwen 3 with experts."""

    model_type = "qwen3_moe"
    architecture = "Qwen3MoeForCausalLM"
    writes = (
        "activation",
        "rope_scaling",
        "attention_pattern",
        "sliding_window",
        "qkv_bias",
        "attention_output_bias",
        "moe",
    )
    fixed: ClassVar[Mapping[str, object]] = {"qk_norm": True}

    def read(self, document: Document) -> dict[str, Any]:
        """See `Family.read`."""
        fields = read_decoder(document, kv_heads=4, length=32_768)
        bias = document.flag("attention_bias", False)
        layers = fields["layers"]
        # Qwen3-30B-A3B has the key, and nothing reads it: all layers slide or none does.
        document.value("max_window_layers")
        window = document.integer("sliding_window", 4096, optional=True)
        if not document.flag("use_sliding_window", False):
            window = None
        kind = "full" if window is None else "sliding"
        return {
            **fields,
            **read_rope(document, fields["max_sequence_length"]),
            **read_kinds(document, layers, window, [kind] * layers),
            "qk_norm": True,
            "qkv_bias": bias,
            "attention_output_bias": bias,
            "moe": _read_experts(document, layers),
        }

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        """See `Family.write`."""
        slides, moe = "sliding" in layer_kinds(config), config.moe
        assert moe is not None
        router = moe.router
        return {
            **write_decoder(config),
            **write_rope(config),
            "hidden_act": activation_name(config, GATED),
            "attention_bias": config.qkv_bias,
            "use_sliding_window": slides,
            "sliding_window": config.sliding_window if slides else None,
            "num_experts": moe.experts,
            "num_experts_per_tok": moe.top_k,
            "moe_intermediate_size": moe.expert_dim or config.ffn_dim,
            "norm_topk_prob": router.normalize,
            "decoder_sparse_step": moe.every,
            "mlp_only_layers": list(range(moe.first_dense)),
            "router_aux_loss_coef": moe.balance_loss,
            "output_router_logits": False,
        }

    def misfits(self, config: TransformerConfig) -> Iterator[Misfit]:
        """See `Family.misfits`."""
        yield from super().misfits(config)
        yield from unfit_activation(config, GATED)
        yield from one_bias(config)
        yield from all_alike(config)
        moe = config.moe
        if moe is None:
            yield Misfit("moe", "null", "a mixture of experts")
            return
        if not isinstance(moe.router, SoftmaxTopK):
            tag = type(moe.router).__setpoint__.tag
            yield Misfit("moe.router", str(tag), "softmax_top_k")
        for name, wanted in FIXED.items():
            if (found := getattr(moe, name)) != wanted:
                yield Misfit(f"moe.{name}", str(found), "null" if wanted is None else str(wanted))


def _read_experts(document: Document, layers: int) -> MoE:
    # transformers 5 writes num_local_experts for what it and 4 call num_experts.
    key = "num_local_experts" if document.has("num_local_experts") else "num_experts"
    if document.has("num_experts") and document.value("num_experts") != document.value(key):
        document.refuse("num_local_experts", "contradicts num_experts")
    dense = document.value("mlp_only_layers") or []
    numbers = isinstance(dense, list) and all(type(each) is int for each in dense)
    if not numbers or sorted(dense) != list(range(len(dense))) or len(dense) > layers:
        dense = []
        document.refuse(
            "mlp_only_layers", "only the first layers can be without experts, as in [0, 1]"
        )
    experts = document.integer(key, 128)
    top_k = document.integer("num_experts_per_tok", 8)
    if top_k > experts:
        document.refuse("num_experts_per_tok", f"there are {experts} experts only")
    return MoE(
        experts=experts,
        top_k=top_k,
        every=document.integer("decoder_sparse_step", 1),
        first_dense=len(dense),
        expert_dim=document.integer("moe_intermediate_size", 768),
        router=SoftmaxTopK(normalize=document.flag("norm_topk_prob", False)),
        balance_loss=document.number("router_aux_loss_coef", 0.001),
    )


FAMILY = Qwen3Moe()
"""The family."""
