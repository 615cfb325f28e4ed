"""Rows of the table of effects: the fields of `[adapter]`."""

from __future__ import annotations

from typing import Any

from setpoint.train.build.parameters import adapted
from setpoint.train.config import Job

from .group_effects import learned
from .schedule_effects import rates

MERGED = ("model.merge_qkv=true",)


def layout(job: Job) -> list[Any]:
    """What is adapted, with which shapes and scales, and what else is trained."""
    found = adapted(job, 257)
    if found is None:
        return []
    own = [(t.site.path, t.scale, *(p.shape for p in t.parameters())) for t in found.targets]
    return [*own, *(each.name for each in found.trained)]


# By the name of a field: the change, where it is seen, and what is set on both sides.
SHARED: dict[str, tuple[Any, ...]] = {
    "rank": ("adapter.rank=4", layout, ("adapter.rank=2",)),
    "alpha": ("adapter.alpha=5", layout, ()),
    "rank_stabilized": ("adapter.rank_stabilized=true", layout, ()),
    "ranks": ("adapter.ranks=[{pattern=query, rank=3}]", layout, ()),
    "dropout": ("adapter.dropout=0.3", learned, ()),
    "b_std": ("adapter.b_std=0.1", learned, ()),
    "targets": ("adapter.targets=[query]", layout, ()),
    "exclude": ("adapter.exclude=[query]", layout, ()),
    "train": ("adapter.train=[norm]", layout, ()),
    "fused": ("adapter.fused=split", layout, MERGED),
    "merge": ("adapter.merge.every=2 steps", learned, ()),
}
MERGES = ("adapter={type=relora, rank=2, merge={every=2 steps}}",)


def shared(variant: str, field: str) -> tuple[Any, ...]:
    """The row of a field that all adapters have."""
    change, see, base = SHARED[field]
    return change, see, (f"adapter={variant}", "adapter.rank=8", *base)


ROWS: dict[str, tuple[Any, ...]] = {
    "Job.adapter": ("adapter={type=lora, rank=2}", learned),
    **{f"LoRA.{field}": shared("lora", field) for field in SHARED},
    **{f"DoRA.{field}": shared("dora", field) for field in SHARED},
    **{f"ReLoRA.{field}": shared("relora", field) for field in SHARED if field != "merge"},
    "ReLoRA.merge": ("adapter.merge=null", learned, MERGES, "refused: ConfigError"),
    "Merge.every": ("adapter.merge.every=3 steps", learned, MERGES),
    "Merge.optimizer_state": ("adapter.merge.optimizer_state=keep", learned, MERGES),
    "Merge.warmup": ("adapter.merge.warmup=2 steps", rates, MERGES),
    "PatternRank.pattern": ("adapter.ranks.0.pattern=key", layout,
                            ("adapter={type=lora, ranks=[{pattern=query, rank=3}]}",)),
    "PatternRank.rank": ("adapter.ranks.0.rank=4", layout,
                         ("adapter={type=lora, ranks=[{pattern=query, rank=3}]}",)),
    "PatternRank.alpha": ("adapter.ranks.0.alpha=4", layout,
                          ("adapter={type=lora, ranks=[{pattern=query, rank=3}]}",)),
}  # fmt: skip
