"""What each field of a mixture of experts changes: rows like those of model_effects.py."""

from __future__ import annotations

EXPERTS = ("model.moe={experts=4, expert_dim=16}",)
SIGMOID = (*EXPERTS, "model.moe.router={type=sigmoid_top_k, bias_rate=0.1}")
GROUPS = ("model.moe={experts=8, groups=4, top_groups=1}", "model.moe.router=sigmoid_top_k")
DEEP = (*EXPERTS, "model.layers=2")

ROWS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "TransformerConfig.moe": (EXPERTS[0], "weights", ()),
    "MoE.experts": ("model.moe.experts=5", "weights", EXPERTS),
    "MoE.top_k": ("model.moe.top_k=3", "logits", EXPERTS),
    "MoE.expert_dim": ("model.moe.expert_dim=24", "weights", EXPERTS),
    "MoE.every": ("model.moe.every=2", "weights", DEEP),
    "MoE.first_dense": ("model.moe.first_dense=1", "weights", DEEP),
    "MoE.shared_experts": ("model.moe.shared_experts=2", "weights", EXPERTS),
    "MoE.shared_gate": (
        "model.moe.shared_gate=true",
        "weights",
        (*EXPERTS, "model.moe.shared_experts=1"),
    ),
    "MoE.bias": ("model.moe.bias=true", "weights", EXPERTS),
    "MoE.router": ("model.moe.router=sigmoid_top_k", "logits", EXPERTS),
    "MoE.route_scale": ("model.moe.route_scale=2.5", "logits", EXPERTS),
    "MoE.groups": ("model.moe.groups=2", "logits", GROUPS),
    "MoE.top_groups": ("model.moe.top_groups=2", "logits", GROUPS),
    "MoE.balance_loss": ("model.moe.balance_loss=0.5", "learned", EXPERTS),
    "MoE.sequence_balance_loss": ("model.moe.sequence_balance_loss=0.5", "learned", EXPERTS),
    "MoE.router_z_loss": ("model.moe.router_z_loss=0.5", "learned", EXPERTS),
    "MoE.capacity_factor": ("model.moe.capacity_factor=0.5", "learned", EXPERTS),
    "MoE.gradient_scale": ("model.moe.gradient_scale=true", "learned", EXPERTS),
    "MoE.load_sequences": ("model.moe.load_sequences=1", "learned", EXPERTS),
    "MoE.packed": ("model.moe.packed=false", "weights", EXPERTS),
    "MoE.implementation": ("model.moe.implementation=loop", "products", EXPERTS),
    "SoftmaxTopK.normalize": ("model.moe.router.normalize=false", "logits", EXPERTS),
    "SigmoidTopK.normalize": ("model.moe.router.normalize=false", "logits", SIGMOID),
    "SigmoidTopK.bias_rate": ("model.moe.router.bias_rate=0.2", "balanced", SIGMOID),
    "SigmoidTopK.bias_schedule": (
        "model.moe.router.bias_schedule=cosine_decay",
        "balanced",
        SIGMOID,
    ),
}
