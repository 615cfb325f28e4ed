"""Rows of the table of effects: what all optimizers share, and the fields of groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from setpoint.resilience.signals import StopRequest
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.loop import Loop
from setpoint.train.position import Position


def learned(job: Job) -> list[bytes]:
    """The parameters after four updates."""
    components = build_components(job)
    Loop(job, components, [], StopRequest(), Position()).run()
    # NumPy has no bf16.
    return [p.detach().float().numpy().tobytes() for p in components.model.parameters()]


Row = tuple[str, Callable[[Job], Any], tuple[str, ...]]
IMPORTED = "{type=import, target=torch.optim.Adagrad}"
DECAYS = "optimizer.weight_decay=0.5"
GROUPS = "optimizer.groups=[{pattern=embedding, lr_multiplier=0.5}]"
GROUP = "optimizer.groups.0"
SPANS, SPAN = "optimizer.frozen_spans=[{pattern=query, stop=2}]", "optimizer.frozen_spans.0"
# By the name of a field: the change, and what is set on both sides.
SHARED = {
    "lr": ("optimizer.lr=0.02", ()),
    "weight_decay": ("optimizer.weight_decay=0.3", ()),
    "no_decay": ("optimizer.no_decay=[]", (DECAYS,)),
    "no_decay_patterns": ("optimizer.no_decay_patterns=[query]", (DECAYS,)),
    "groups": (GROUPS, ()),
    "frozen": ("optimizer.frozen=[query]", ()),
    "frozen_spans": ("optimizer.frozen_spans=[{pattern=query, stop=2}]", ()),
    # Clipped to one norm at each update, gradients differ from others so clipped in scale alone.
    "clip_norm": ("optimizer.clip_norm=0.01", ("optimizer.clip_norm=null",)),
    "clip_value": ("optimizer.clip_value=0.001", ()),
}


def shared(optimizer: str, field: str) -> Row:
    """The row of a field that all optimizers have."""
    change, base = SHARED[field]
    return change, learned, (f"optimizer={optimizer}", *base)


ROWS: dict[str, Row] = {
    "AdamW.lr": shared("adamw", "lr"),
    "AdamW.weight_decay": shared("adamw", "weight_decay"),
    "AdamW.no_decay": shared("adamw", "no_decay"),
    "AdamW.no_decay_patterns": shared("adamw", "no_decay_patterns"),
    "AdamW.groups": shared("adamw", "groups"),
    "AdamW.frozen": shared("adamw", "frozen"),
    "AdamW.frozen_spans": shared("adamw", "frozen_spans"),
    "AdamW.clip_norm": shared("adamw", "clip_norm"),
    "AdamW.clip_value": shared("adamw", "clip_value"),
    "SGD.lr": shared("sgd", "lr"),
    "SGD.weight_decay": shared("sgd", "weight_decay"),
    "SGD.no_decay": shared("sgd", "no_decay"),
    "SGD.no_decay_patterns": shared("sgd", "no_decay_patterns"),
    "SGD.groups": shared("sgd", "groups"),
    "SGD.frozen": shared("sgd", "frozen"),
    "SGD.frozen_spans": shared("sgd", "frozen_spans"),
    "SGD.clip_norm": shared("sgd", "clip_norm"),
    "SGD.clip_value": shared("sgd", "clip_value"),
    "Lion.lr": shared("lion", "lr"),
    "Lion.weight_decay": shared("lion", "weight_decay"),
    "Lion.no_decay": shared("lion", "no_decay"),
    "Lion.no_decay_patterns": shared("lion", "no_decay_patterns"),
    "Lion.groups": shared("lion", "groups"),
    "Lion.frozen": shared("lion", "frozen"),
    "Lion.frozen_spans": shared("lion", "frozen_spans"),
    "Lion.clip_norm": shared("lion", "clip_norm"),
    "Lion.clip_value": shared("lion", "clip_value"),
    "Muon.lr": shared("muon", "lr"),
    "Muon.weight_decay": shared("muon", "weight_decay"),
    "Muon.no_decay": shared("muon", "no_decay"),
    "Muon.no_decay_patterns": shared("muon", "no_decay_patterns"),
    "Muon.groups": shared("muon", "groups"),
    "Muon.frozen": shared("muon", "frozen"),
    "Muon.frozen_spans": shared("muon", "frozen_spans"),
    "Muon.clip_norm": shared("muon", "clip_norm"),
    "Muon.clip_value": shared("muon", "clip_value"),
    "ScheduleFreeAdamW.lr": shared("schedule_free_adamw", "lr"),
    "ScheduleFreeAdamW.weight_decay": shared("schedule_free_adamw", "weight_decay"),
    "ScheduleFreeAdamW.no_decay": shared("schedule_free_adamw", "no_decay"),
    "ScheduleFreeAdamW.no_decay_patterns": shared("schedule_free_adamw", "no_decay_patterns"),
    "ScheduleFreeAdamW.groups": shared("schedule_free_adamw", "groups"),
    "ScheduleFreeAdamW.frozen": shared("schedule_free_adamw", "frozen"),
    "ScheduleFreeAdamW.frozen_spans": shared("schedule_free_adamw", "frozen_spans"),
    "ScheduleFreeAdamW.clip_norm": shared("schedule_free_adamw", "clip_norm"),
    "ScheduleFreeAdamW.clip_value": shared("schedule_free_adamw", "clip_value"),
    "AnyPrecisionAdamW.lr": shared("anyprecision_adamw", "lr"),
    "AnyPrecisionAdamW.weight_decay": shared("anyprecision_adamw", "weight_decay"),
    "AnyPrecisionAdamW.no_decay": shared("anyprecision_adamw", "no_decay"),
    "AnyPrecisionAdamW.no_decay_patterns": shared("anyprecision_adamw", "no_decay_patterns"),
    "AnyPrecisionAdamW.groups": shared("anyprecision_adamw", "groups"),
    "AnyPrecisionAdamW.frozen": shared("anyprecision_adamw", "frozen"),
    "AnyPrecisionAdamW.frozen_spans": shared("anyprecision_adamw", "frozen_spans"),
    "AnyPrecisionAdamW.clip_norm": shared("anyprecision_adamw", "clip_norm"),
    "AnyPrecisionAdamW.clip_value": shared("anyprecision_adamw", "clip_value"),
    "Adafactor.lr": shared("adafactor", "lr"),
    "Adafactor.weight_decay": shared("adafactor", "weight_decay"),
    "Adafactor.no_decay": shared("adafactor", "no_decay"),
    "Adafactor.no_decay_patterns": shared("adafactor", "no_decay_patterns"),
    "Adafactor.groups": shared("adafactor", "groups"),
    "Adafactor.frozen": shared("adafactor", "frozen"),
    "Adafactor.frozen_spans": shared("adafactor", "frozen_spans"),
    "Adafactor.clip_norm": shared("adafactor", "clip_norm"),
    "Adafactor.clip_value": shared("adafactor", "clip_value"),
    "ImportedOptimizer.lr": shared(IMPORTED, "lr"),
    "ImportedOptimizer.weight_decay": shared(IMPORTED, "weight_decay"),
    "ImportedOptimizer.no_decay": shared(IMPORTED, "no_decay"),
    "ImportedOptimizer.no_decay_patterns": shared(IMPORTED, "no_decay_patterns"),
    "ImportedOptimizer.groups": shared(IMPORTED, "groups"),
    "ImportedOptimizer.frozen": shared(IMPORTED, "frozen"),
    "ImportedOptimizer.frozen_spans": shared(IMPORTED, "frozen_spans"),
    "ImportedOptimizer.clip_norm": shared(IMPORTED, "clip_norm"),
    "ImportedOptimizer.clip_value": shared(IMPORTED, "clip_value"),
    "FrozenSpan.pattern": (f"{SPAN}.pattern=norm", learned, (SPANS,)),
    "FrozenSpan.start": (f"{SPAN}.start=1", learned, (SPANS,)),
    "FrozenSpan.stop": (f"{SPAN}.stop=3", learned, (SPANS,)),
    "Group.pattern": (f"{GROUP}.pattern=norm", learned, (GROUPS,)),
    "Group.lr_multiplier": (f"{GROUP}.lr_multiplier=2", learned, (GROUPS,)),
    "Group.weight_decay_multiplier": (f"{GROUP}.weight_decay_multiplier=9", learned, (GROUPS,)),
    "Group.options": (f"{GROUP}.options={{betas=[0.5, 0.6]}}", learned, (GROUPS,)),
}
