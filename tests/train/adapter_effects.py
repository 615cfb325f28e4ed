"""Rows of the table of effects: the fields of `[adapter]`."""

from __future__ import annotations

from typing import Any

import pytest

from setpoint.adapter.quantize import config as quantize
from setpoint.adapter.quantize.config import NF4, NVFP4, backend_in
from setpoint.train.build.job_parameters import adapted
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


def quantized(job: Job) -> list[Any]:
    """What is quantized, and to how many bytes."""
    found = adapted(job, 257)
    return [] if found is None else sorted(found.quantized.items())


def library(job: Job) -> str:
    """What would quantize on a GPU, with all packages there."""
    assert job.adapter is not None
    config = job.adapter.quantize
    assert isinstance(config, NF4 | NVFP4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantize, "is_installed", lambda name: True)
        return backend_in(config, "cuda")


def on(format: str, block: int, rank: int = 2) -> str:
    """An adapter on a base in a format."""
    quantize = f"{{type={format}, group_size={block}}}"
    return f"adapter={{type=qlora, rank={rank}, quantize={quantize}}}"


SIZES = {"nf4": 16, "int8": 16, "fp8": 4, "nvfp4": 16}
FORMATS = {"nf4": "NF4", "int8": "Int8", "fp8": "FP8", "nvfp4": "NVFP4"}
MX = ("adapter={type=qlora, rank=2, quantize={type=mxfp4}}", "model.dim=32", "model.ffn_dim=64")
NOISE = (on("nf4", 16), "adapter.quantize.noise.alpha=2")
FADES = (*NOISE, "adapter.quantize.noise.final_alpha=0.1", "adapter.quantize.noise.decay_steps=3")
QUANTIZE: dict[str, tuple[Any, ...]] = {
    **{f"{name}.group_size": ("adapter.quantize.group_size=8", quantized, (on(tag, SIZES[tag]),))
       for tag, name in FORMATS.items()},
    **{f"{name}.exclude": ("adapter.quantize.exclude=[query]", quantized, (on(tag, SIZES[tag]),))
       for tag, name in FORMATS.items()},
    **{f"{name}.noise": ("adapter.quantize.noise.alpha=2", learned, (on(tag, SIZES[tag]),))
       for tag, name in FORMATS.items()},
    "MXFP4.exclude": ("adapter.quantize.exclude=[query]", quantized, MX),
    "MXFP4.noise": ("adapter.quantize.noise.alpha=2", learned, MX),
    "NF4.double": ("adapter.quantize.double=false", quantized, (on("nf4", 16),)),
    "NF4.backend": ("adapter.quantize.backend=torch", library, (on("nf4", 32), "model.dim=32")),
    "NVFP4.backend": ("adapter.quantize.backend=torch", library, (on("nvfp4", 16),)),
    "Noise.alpha": ("adapter.quantize.noise.alpha=1", learned, NOISE),
    "Noise.final_alpha": ("adapter.quantize.noise.final_alpha=0.1", learned, NOISE),
    "Noise.decay": ("adapter.quantize.noise.decay=linear", learned, FADES),
    "Noise.decay_steps": ("adapter.quantize.noise.decay_steps=2", learned, FADES),
}  # fmt: skip

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
    "fused_projections": ("adapter.fused_projections=split", layout, MERGED),
    "merge": ("adapter.merge.every=2 steps", learned, ()),
    "quantize": ("adapter.quantize={type=int8, group_size=8}", quantized, ()),
}
MERGES = ("adapter={type=relora, rank=2, merge={every=2 steps}}",)


def shared(variant: str, field: str) -> tuple[Any, ...]:
    """The row of a field that all adapters have."""
    change, see, base = SHARED[field]
    adapter = on("nf4", 16, rank=8) if variant == "qlora" else f"adapter={{type={variant}, rank=8}}"
    return change, see, (adapter, *base)


ROWS: dict[str, tuple[Any, ...]] = {
    "Job.adapter": ("adapter={type=lora, rank=2}", learned),
    "LoRA.rank": shared("lora", "rank"),
    "LoRA.alpha": shared("lora", "alpha"),
    "LoRA.rank_stabilized": shared("lora", "rank_stabilized"),
    "LoRA.ranks": shared("lora", "ranks"),
    "LoRA.dropout": shared("lora", "dropout"),
    "LoRA.b_std": shared("lora", "b_std"),
    "LoRA.targets": shared("lora", "targets"),
    "LoRA.exclude": shared("lora", "exclude"),
    "LoRA.train": shared("lora", "train"),
    "LoRA.fused_projections": shared("lora", "fused_projections"),
    "LoRA.merge": shared("lora", "merge"),
    "LoRA.quantize": shared("lora", "quantize"),
    **{f"DoRA.{field}": shared("dora", field) for field in SHARED},
    **{f"ReLoRA.{field}": shared("relora", field) for field in SHARED if field != "merge"},
    "ReLoRA.merge": ("adapter.merge=null", learned, MERGES, "refused: ConfigError"),
    "Merge.every": ("adapter.merge.every=3 steps", learned, MERGES),
    "Merge.optimizer_state": ("adapter.merge.optimizer_state=keep", learned, MERGES),
    "Merge.rewarmup": ("adapter.merge.rewarmup=2 steps", rates, MERGES),
    **{f"QLoRA.{field}": shared("qlora", field) for field in SHARED},
    **QUANTIZE,
    "PatternRank.pattern": ("adapter.ranks.0.pattern=key", layout,
                            ("adapter={type=lora, ranks=[{pattern=query, rank=3}]}",)),
    "PatternRank.rank": ("adapter.ranks.0.rank=4", layout,
                         ("adapter={type=lora, ranks=[{pattern=query, rank=3}]}",)),
    "PatternRank.alpha": ("adapter.ranks.0.alpha=4", layout,
                          ("adapter={type=lora, ranks=[{pattern=query, rank=3}]}",)),
}  # fmt: skip
