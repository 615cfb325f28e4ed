"""Merges of an adapter into the weights beneath it, during training (ReLoRA)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from setpoint.adapter.plan import CHILD
from setpoint.model.initialize import fill_by
from setpoint.shapes.placed import put, whole_of
from setpoint.train.build.adapter import (
    adapter_rules,
    held_by_adapters,
    replace_base,
    whole_base,
    whole_update,
)

if TYPE_CHECKING:
    from setpoint.train.build.components import Components


@torch.no_grad()
def merge_adapters(
    components: Components, seed: int, step: int, optimizer_state: Literal["drop", "keep"] = "keep"
) -> None:
    """Let weights be the merged ones, and adapters begin again, so that the function is the same.

    W becomes W + scale * B A, with a magnitude m / |W + scale * B A| times that, row by row. A is
    drawn anew, by the seed, its name and the step, B is zero, and a magnitude is the length that
    the merged rows have. Where ranks hold parts, all of them take part; one weight at a time is
    gathered.

    Arguments:
        optimizer_state: see `adapter.merge.optimizer_state`.
    """
    rules = adapter_rules(components.model, after_merge=True)
    masters = dict(components.weights.named_parameters())
    for path, (adapter, weight, params) in held_by_adapters(components.model).items():
        # Those of the optimizer, which may be more exact than the model's.
        held = {name: masters.get(f"{path}.{name}", param) for name, param in params.items()}
        merged = whole_base(weight) + whole_update(adapter, held)
        if "magnitude" in held:
            lengths = torch.linalg.vector_norm(merged, dim=adapter.row_dim)
            factor = whole_of(held["magnitude"]) / lengths
            merged = merged * factor.unsqueeze(adapter.row_dim)
        rounded = replace_base(weight, merged)
        for name in ("a", "b"):
            # Another name for each merge, by which it is drawn.
            drawn = f"{path}.{name}@{step}"
            fill_by({drawn: held[name]}, {drawn: rules[f"{path}.{name}"]}, seed)
        if "magnitude" in held:
            # Of the rounded weights, so that the factor is 1.
            put(held["magnitude"], torch.linalg.vector_norm(rounded, dim=adapter.row_dim))
    components.weights.master_to_params()
    if optimizer_state == "drop":
        for name, param in components.weights.named_parameters():
            if f".{CHILD}." in name:
                components.optimizer.state.pop(param, None)
