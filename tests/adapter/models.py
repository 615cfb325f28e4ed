"""Tiny transformers of the shapes that people fine-tune, with an adapter."""

from typing import Any

import torch
from torch import Tensor, nn

from setpoint.adapter.config import AdapterConfig
from setpoint.adapter.low_rank import adapt
from setpoint.config import resolve
from setpoint.model.build import materialize, skeleton
from setpoint.model.config import LayerNormConfig, TransformerConfig
from setpoint.model.initialize import initialize
from setpoint.model.moe.config import MoE
from setpoint.model.parameters import fused_parts_of
from setpoint.train.build.adapter import adapter_rules, start_magnitudes
from setpoint.train.build.job_parameters import trained_parameters

WORDS = 29
SIZES: dict[str, Any] = {
    "dim": 16, "layers": 2, "heads": 4, "ffn_dim": 24, "max_sequence_length": 12,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"kv_heads": 2},
    "qwen3": {"kv_heads": 2, "qk_norm": True, "head_dim": 8, "tie_embeddings": True},
    "gpt2": {
        "merge_qkv": True, "qkv_bias": True, "ffn_bias": True, "attention_output_bias": True,
        "norm": LayerNormConfig(), "activation": "gelu_tanh", "positions": "learned",
    },
    "moe": {"moe": MoE(experts=4, top_k=2)},
}  # fmt: skip


def model_config(shape: str, **given: Any) -> TransformerConfig:
    return resolve(TransformerConfig(**{**SIZES, **SHAPES[shape], **given}))


def base_model(config: TransformerConfig, seed: int = 1) -> nn.Module:
    """A model with random weights, larger than usual, so that all of it counts."""
    model = skeleton(config, WORDS)
    materialize(model, "cpu", torch.float32)
    initialize(model, seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" not in name:
                weight.mul_(2.0)
    return model


def adapted_model(adapter: AdapterConfig, config: TransformerConfig, seed: int = 1) -> nn.Module:
    model = base_model(config, seed)
    adapt(resolve(adapter), model, trained_parameters(model), fused_parts_of(config))
    rules = adapter_rules(model)
    others = {n: p.detach().clone() for n, p in model.named_parameters() if n not in rules}
    initialize(model, seed, rules)
    with torch.no_grad():
        for name, weight in others.items():
            model.get_parameter(name).copy_(weight)
    start_magnitudes(model)
    return model


def tokens(step: int = 0) -> Tensor:
    return torch.randint(WORDS, (3, 10), generator=torch.Generator().manual_seed(step))


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    logits = model(batch)
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
