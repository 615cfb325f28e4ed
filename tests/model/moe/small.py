"""A layer with experts, small enough for every test."""

from typing import Any

import torch

from setpoint.config import Problem, resolve
from setpoint.model.config import TransformerConfig
from setpoint.model.initialize import initialize
from setpoint.model.moe.config import MoE, SigmoidTopK, SoftmaxTopK
from setpoint.model.moe.layer import MoELayer

__all__ = ["SigmoidTopK", "SoftmaxTopK", "described", "small_layer", "small_transformer"]


def small_transformer(model: dict[str, Any] | None = None, **moe: Any) -> TransformerConfig:
    """The configuration of a model whose layers all have experts."""
    fields = {"dim": 16, "layers": 2, "heads": 2, "max_sequence_length": 32, "init_std": 0.3}
    own = {"experts": 4, "expert_dim": 24, **moe}
    return resolve(TransformerConfig(**{**fields, **(model or {}), "moe": MoE(**own)}))


def small_layer(
    model: dict[str, Any] | None = None, dtype: torch.dtype = torch.float64, **moe: Any
) -> MoELayer:
    """One layer, initialized."""
    layer = MoELayer(small_transformer(model, **moe), 0)
    initialize(layer, 1)
    return layer.to(dtype)


def described(problem: Problem) -> str:
    """A problem without the place in the test that it came from."""
    return f"{problem.path}: {problem.message}\nvalid: {problem.valid}\n{problem.hint}"
