"""Tensor plans of transformers' models; see `setpoint.shapes.protocols.TensorDivisible`.

They are transformers' own plans, in our words, and ours for attention that these leave out.
"""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from setpoint.config import SetpointError

WORDS = {
    "colwise": "column",
    "rowwise": "row",
    "rowwise_rep": "row",
    "rowwise_split_input": "row_whole_input",
    "colwise_gather_output": "column_gathered",
    "colwise_rep": "column_gathered",
    "embedding_rowwise": "vocabulary_rows",
    "replicated_with_grad_allreduce": "sum_gradients",
}
"""Words of transformers' tensor-parallel plans, and ours."""

ELSEWHERE = (
    "moe_tp_experts", "packed_colwise", "packed_rowwise", "grouped_gemm", "ep_router",
    "ep_dispatch_experts", "moe_identity_expert", "replicate",
)  # fmt: skip
"""Words for packed experts, which `parallel.expert` and `expert_tensor` divide, and for what all
ranks have."""

PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj"}
LATENT = {"kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj"}


def tensor_plan(model: Any) -> dict[str, str]:
    """Make the plan of a model.

    Raises:
        SetpointError: it has none, or one with modules that are divided in other ways.
    """
    given: dict[str, str] = getattr(model, "_tp_plan", None) or {}
    kind = type(model).__name__
    unknown = sorted(set(given.values()) - WORDS.keys() - set(ELSEWHERE))
    if unknown:
        raise SetpointError(
            f"parallel.tensor: the plan of transformers for {kind} divides modules by "
            f"{', '.join(unknown)}, and what can be done is {', '.join(WORDS)}\nValid: 1"
        )
    plan: dict[str, str] = {}
    for pattern, word in given.items():
        if word in ELSEWHERE:
            continue
        matches = re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))
        for path, module in model.named_modules():
            # Words for parameters are those of experts; there, no module has the name.
            if matches.fullmatch(path):
                plan[path] = WORDS[word] + _heads_of(model, path, module)
    for path, module in model.named_modules():
        if not any(name.startswith(f"{path}.") for name in plan):
            plan |= _attention_plan(model, path, module)
    if not plan:
        raise SetpointError(
            f"parallel.tensor: transformers has no tensor-parallel plan for {kind}\nValid: 1"
        )
    return plan


def _heads_of(model: Any, path: str, module: nn.Module) -> str:
    """How many heads the outputs of a projection are, as a `column` says it."""
    keys = model.config.get_text_config()
    heads = getattr(keys, "num_attention_heads", None)
    key_heads = getattr(keys, "num_key_value_heads", None) or heads
    count = {"q_proj": heads, "k_proj": key_heads, "v_proj": key_heads}.get(path.split(".")[-1])
    if not count or not isinstance(module, nn.Linear) or module.out_features % count:
        return ""
    return f" {count}*{module.out_features // count}"


def _attention_plan(model: Any, path: str, module: nn.Module) -> dict[str, str]:
    """Divide attention by its heads, where its projections are the usual ones."""
    children = dict(module.named_children())
    heads = model.config.get_text_config().num_attention_heads
    if LATENT <= children.keys() <= LATENT | {"q_proj", "q_a_proj", "q_a_layernorm", "q_b_proj"}:
        columns = {
            name: f"column {heads}*{children[name].out_features // heads}"
            for name in ("q_proj", "q_b_proj", "kv_b_proj")
            if name in children
        }
        named = {"": "shared_input", **columns, "o_proj": "row"}
    elif children.keys() == PROJECTIONS:
        columns = {
            name: "column" + _heads_of(model, name, children[name])
            for name in ("q_proj", "k_proj", "v_proj")
        }
        named = {"": "shared_input", **columns, "o_proj": "row"}
    else:
        return {}
    parameters = dict(module.named_parameters(recurse=False))
    if parameters.keys() - {"sinks"}:
        return {}
    named |= dict.fromkeys(parameters, "part")
    return {f"{path}.{name}".rstrip("."): word for name, word in named.items()}
