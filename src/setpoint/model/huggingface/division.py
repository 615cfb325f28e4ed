"""Plans by which ranks divide transformers' models; see `setpoint.shapes.division`."""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from setpoint.config import SetpointError

WORDS = {
    "colwise": "column",
    "rowwise": "row",
    "colwise_gather_output": "column_gathered",
    "embedding_rowwise": "vocabulary_rows",
    "replicated_with_grad_allreduce": "sum_gradients",
}
"""Words of transformers' tensor-parallel plans, and ours."""


def tensor_plan(model: Any) -> dict[str, str]:
    """Translate the plan that transformers has for a model.

    Raises:
        SetpointError: it has none, or one with modules that are divided in other ways.
    """
    theirs: dict[str, str] = getattr(model, "_tp_plan", None) or {}
    kind = type(model).__name__
    if not theirs:
        raise SetpointError(
            f"parallel.tensor: transformers has no tensor-parallel plan for {kind}\nValid: 1"
        )
    unknown = sorted(set(theirs.values()) - WORDS.keys())
    if unknown:
        raise SetpointError(
            f"parallel.tensor: the plan of transformers for {kind} divides modules by "
            f"{', '.join(unknown)}, and what can be done is {', '.join(WORDS)}\nValid: 1"
        )
    plan: dict[str, str] = {}
    for pattern, word in theirs.items():
        matches = re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))
        for path, module in model.named_modules():
            if matches.fullmatch(path):
                plan[path] = WORDS[word] + _heads_of(model, path, module)
    return plan


def _heads_of(model: Any, path: str, module: nn.Module) -> str:
    """How many heads the outputs of a projection are, as a `column` says it."""
    heads = getattr(model.config, "num_attention_heads", None)
    key_heads = getattr(model.config, "num_key_value_heads", None) or heads
    count = {"q_proj": heads, "k_proj": key_heads, "v_proj": key_heads}.get(path.split(".")[-1])
    if not count or not isinstance(module, nn.Linear):
        return ""
    return f" {count}*{module.out_features // count}"
