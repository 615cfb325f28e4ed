"""Rows of the table of effects: the fields of the number formats.

What needs a GPU is seen on a CPU that stands for one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from setpoint.model.build import skeleton
from setpoint.model.config import TransformerConfig
from setpoint.precision.config import converted
from setpoint.precision.float8 import why_not
from setpoint.precision.mixed_precision import shard_dtypes
from setpoint.resilience.signals import StopRequest
from setpoint.shapes.placed import ShardedWeight
from setpoint.train.build.components import Components, build_components
from setpoint.train.config import Job
from setpoint.train.loop import Loop
from setpoint.train.opening import settings_of
from setpoint.train.position import Position
from setpoint.train.rules.model import linear_layers

from ..precision.gpu_stand_in import gpu_stand_in


def run(job: Job) -> Components:
    if job.precision.float8 is not None:
        pytest.importorskip("torchao")
    with gpu_stand_in():
        components = build_components(job)
        Loop(job, components, [], StopRequest(), Position()).run()
    return components


def learned(job: Job) -> list[bytes]:
    """The parameters after four updates."""
    return [p.detach().float().numpy().tobytes() for p in run(job).model.parameters()]


def scale(job: Job) -> float:
    """What the loss is multiplied by after four updates."""
    return run(job).scaler.get_scale()


def fp32_products(job: Job) -> tuple[str, bool]:
    """How a GPU computes products in fp32 while the job runs."""
    with gpu_stand_in(), settings_of(job):
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


def gathered(job: Job) -> dict[str, tuple[torch.dtype, torch.dtype]]:
    """In which dtypes FSDP2 gathers weights, and sums their whole gradients."""
    model: Any = skeleton(job.model, 257)
    choose = shard_dtypes(job.precision, model)
    parts = {"norm": model.norm, "linear": model.layers["0"].attention.output}
    found = {
        name: choose(ShardedWeight([(module, "weight")], module.weight))
        for name, module in parts.items()
    }
    return {name: dtypes[:2] for name, dtypes in found.items()}


def gathers_float8(job: Job) -> bool:
    """Whether sharded weights are gathered in float8; see tests/precision/float8_ranks.py."""
    assert job.precision.float8 is not None
    return job.precision.float8.gathers(job.parallel.reshard)


def in_float8(job: Job) -> set[str]:
    """The kinds of layers that multiply in float8."""
    assert job.precision.float8 is not None and isinstance(job.model, TransformerConfig)
    names = converted(job.precision.float8, linear_layers(job.model))
    return {name.rpartition(".")[2] for name in names}


def runs_anywhere(job: Job) -> bool:
    """Whether a CPU has the products."""
    assert job.precision.float8 is not None
    return why_not(job.precision.float8, torch.device("cpu")) is None


See = Callable[[Job], Any]
BF16 = ("precision.compute=bf16",)
SHORT = (*BF16, "precision.params=bf16")
FLOAT8 = (*SHORT, "precision.float8.emulate=true")
FP16 = ("precision.compute=fp16", "parallel.device=cuda")
# By the name of a field: the change, where it is seen, what is set on both sides, and what is seen
# with the change where it can be said in short.
ROWS: dict[str, tuple[Any, ...]] = {
    "Precision.params": ("precision.params=bf16", learned, BF16),
    "Precision.compute": ("precision.compute=bf16", learned, ()),
    "Precision.reduce": ("precision.reduce=bf16", learned, ()),
    "Precision.master": ("precision.master=fp32", learned, SHORT),
    "Precision.optimizer_state": ("precision.optimizer_state=bf16", learned, ("optimizer=sgd",)),
    "Precision.gather": ("precision.gather=fp32", gathered,
                         (*BF16, "parallel.world_size=2", "parallel.shard=2"),
                         dict.fromkeys(("norm", "linear"), (torch.float32, torch.float32))),
    "Precision.tf32": ("precision.tf32=true", fp32_products, ("parallel.device=cuda",),
                       ("high", True)),
    "Precision.float8": (FLOAT8[-1], learned, SHORT),
    "Precision.loss_scale": ("precision.loss_scale.initial=4", scale, FP16, 4.0),
    "Float8.recipe": ("precision.float8.recipe=rowwise", learned, FLOAT8),
    "Float8.gather": ("precision.float8.gather=false", gathers_float8,
                      (*FLOAT8, "parallel.world_size=2", "parallel.shard=2"), False),
    "Float8.skip_small": ("precision.float8.skip_small=true", in_float8,
                          (*FLOAT8, "model={dim: 4096, heads: 32, kv_heads: 8}"),
                          {"query", "output", "gate", "up", "down"}),
    "Float8.experts": ("precision.float8.experts=true", learned,
                       (*FLOAT8, "precision.float8.recipe=rowwise", "model.moe={experts: 4}")),
    "Float8.emulate": ("precision.float8.emulate=true", runs_anywhere,
                       (*SHORT, "parallel.device=cuda", "precision.float8={}"), True),
    "Float8.skip": ('precision.float8.skip=["^output$", "query"]', learned, FLOAT8),
    "LossScale.initial": ("precision.loss_scale.initial=4", scale, FP16, 4.0),
    "LossScale.growth": ("precision.loss_scale.growth=4", scale,
                         (*FP16, "precision.loss_scale={initial=1, growth_interval=2}"), 16.0),
    "LossScale.backoff": ("precision.loss_scale.backoff=0.125", scale,
                          (*FP16, f"precision.loss_scale.initial={2.0**127}"), 2.0**115),
    "LossScale.growth_interval": ("precision.loss_scale.growth_interval=2", scale, FP16, 2.0**18),
}  # fmt: skip
