"""What ties a mixture of experts to the model around it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig

GROUPED_MULTIPLE = 4
"""Widths that a grouped matrix product takes in fp32; in bf16 it takes multiples of 8."""


def expert_problems(c: TransformerConfig) -> Iterator[Problem]:
    """Find what a model cannot do with its experts."""
    moe = c.moe
    if moe is None:
        return
    if not moe.layers_with_experts(c.layers):
        late = moe.first_dense if moe.first_dense >= c.layers else 0
        yield Problem(
            "moe.first_dense" if late else "moe.every",
            f"none of the {c.layers} layers has experts",
            valid=(str(c.layers - 1),) if late else (str(c.layers), "1"),
            also=("layers", "moe.every" if late else "moe.first_dense"),
            hint="Or set moe to null.",
        )
    if moe.implementation == "grouped":
        width = "ffn_dim" if moe.expert_dim is None else "moe.expert_dim"
        for path, size in (("dim", c.dim), (width, moe.width(c.ffn_dim))):
            if size % GROUPED_MULTIPLE:
                nearest = dict.fromkeys((max(8, size // 8 * 8), size // 8 * 8 + 8))
                yield Problem(
                    "moe.implementation",
                    f"a grouped matrix product needs widths that are multiples of "
                    f"{GROUPED_MULTIPLE}, in bf16 of 8, and {path} is {size}",
                    valid=("auto", "loop"),
                    also=(path,),
                    hint=f"Or set {path} to {' or '.join(map(str, nearest))}.",
                )
