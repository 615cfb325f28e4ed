"""Rows of the table of effects: the fields that only some optimizers have."""

from __future__ import annotations

from typing import Any

from setpoint.resilience.signals import StopRequest
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.loop import Loop
from setpoint.train.position import Position

from .group_effects import learned


def kernels(job: Job) -> set[tuple[bool | None, bool | None]]:
    """Which of PyTorch's implementations the groups ask for."""
    groups = build_components(job).optimizer.param_groups
    return {(group["fused"], group["foreach"]) for group in groups}


def algorithms(job: Job) -> dict[str, int]:
    """How many parameters each of Muon's algorithms gets."""
    groups = build_components(job).optimizer.param_groups
    return {
        name: sum(len(group["params"]) for group in groups if group["algorithm"] == name)
        for name in ("muon", "adamw")
    }


def largest_change(job: Job) -> float:
    """How far the first update moves a weight that does not decay and is not for Muon."""
    components = build_components(job)
    before = {name: p.detach().clone() for name, p in components.model.named_parameters()}
    Loop(job, components, [], StopRequest(), Position()).step()
    name, after = next((n, p) for n, p in components.model.named_parameters() if p.ndim == 1)
    return round(float((after.detach() - before[name]).abs().max()), 4)


SGD = ("optimizer=sgd",)
LION = ("optimizer=lion",)
MUON = ("optimizer=muon", "schedule=constant")
FREE = ("optimizer=schedule_free_adamw", "optimizer.lr=0.01", "schedule=constant")
ANY = ("optimizer=anyprecision_adamw", "precision.params=bf16", "precision.compute=bf16")
CAUTIOUS = "optimizer.cautious_weight_decay=true"
FACTOR = ("optimizer=adafactor",)
# By the name of a field: the change, where it is seen, what is set on both sides, and what is
# seen with the change where that can be said in short.
ROWS: dict[str, tuple[Any, ...]] = {
    "AdamWConfig.betas": ("optimizer.betas=[0.8, 0.9]", learned),
    "AdamWConfig.eps": ("optimizer.eps=1e-3", learned),
    "AdamWConfig.amsgrad": ("optimizer.amsgrad=true", learned, ("optimizer.betas=[0.1, 0.1]",)),
    "AdamWConfig.implementation": (
        "optimizer.implementation=foreach",
        kernels,
        (),
        {(False, True)},
    ),
    "AdamWConfig.cautious_weight_decay": (CAUTIOUS, learned),
    "LionConfig.cautious_weight_decay": (CAUTIOUS, learned, LION),
    "MuonConfig.cautious_weight_decay": (CAUTIOUS, learned, MUON),
    "AnyPrecisionAdamWConfig.cautious_weight_decay": (CAUTIOUS, learned, ANY),
    "SGDConfig.momentum": ("optimizer.momentum=0.5", learned, SGD),
    "SGDConfig.dampening": ("optimizer.dampening=0.5", learned, SGD),
    "SGDConfig.nesterov": ("optimizer.nesterov=true", learned, SGD),
    "SGDConfig.implementation": ("optimizer.implementation=loop", kernels, SGD, {(False, False)}),
    "LionConfig.betas": ("optimizer.betas=[0.5, 0.6]", learned, LION),
    "MuonConfig.momentum": ("optimizer.momentum=0.5", learned, MUON),
    "MuonConfig.nesterov": ("optimizer.nesterov=false", learned, MUON),
    "MuonConfig.steps": ("optimizer.steps=3", learned, MUON),
    "MuonConfig.adjust_lr": ("optimizer.adjust_lr=match_rms_adamw", learned, MUON),
    "MuonConfig.adamw_lr": ("optimizer.adamw_lr=0.003", largest_change, MUON, 0.003),
    "MuonConfig.adamw_patterns": (
        "optimizer.adamw_patterns=[feed_forward]",
        algorithms,
        MUON,
        {"muon": 4, "adamw": 8},
    ),
    "MuonConfig.betas": ("optimizer.betas=[0.8, 0.9]", learned, MUON),
    "MuonConfig.eps": ("optimizer.eps=1e-3", learned, MUON),
    "ScheduleFreeAdamWConfig.betas": ("optimizer.betas=[0.8, 0.9]", learned, FREE),
    "ScheduleFreeAdamWConfig.eps": ("optimizer.eps=1e-3", learned, FREE),
    # With a rate that does not rise any more all weigh the same, whatever the power.
    "ScheduleFreeAdamWConfig.lr_power": (
        "optimizer.lr_power=1",
        learned,
        (*FREE, "schedule={type=constant, warmup=4}"),
    ),
    "ScheduleFreeAdamWConfig.step_power": ("optimizer.step_power=1", learned, FREE),
    "AnyPrecisionAdamWConfig.betas": ("optimizer.betas=[0.8, 0.9]", learned, ANY),
    "AnyPrecisionAdamWConfig.eps": ("optimizer.eps=1e-3", learned, ANY),
    "AnyPrecisionAdamWConfig.rounding": ("optimizer.rounding=nearest", learned, ANY),
    "AdafactorConfig.beta2_decay": ("optimizer.beta2_decay=-0.3", learned, FACTOR),
    "AdafactorConfig.eps1": ("optimizer.eps1=0.1", learned, FACTOR),
    "AdafactorConfig.eps2": ("optimizer.eps2=0.5", learned, FACTOR),
    "AdafactorConfig.clip_threshold": ("optimizer.clip_threshold=3", learned, FACTOR),
}
