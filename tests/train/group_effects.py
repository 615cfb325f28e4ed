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
    "AdamWConfig.lr": shared("adamw", "lr"),
    "AdamWConfig.weight_decay": shared("adamw", "weight_decay"),
    "AdamWConfig.no_decay": shared("adamw", "no_decay"),
    "AdamWConfig.no_decay_patterns": shared("adamw", "no_decay_patterns"),
    "AdamWConfig.groups": shared("adamw", "groups"),
    "AdamWConfig.frozen": shared("adamw", "frozen"),
    "AdamWConfig.frozen_spans": shared("adamw", "frozen_spans"),
    "AdamWConfig.clip_norm": shared("adamw", "clip_norm"),
    "AdamWConfig.clip_value": shared("adamw", "clip_value"),
    "SGDConfig.lr": shared("sgd", "lr"),
    "SGDConfig.weight_decay": shared("sgd", "weight_decay"),
    "SGDConfig.no_decay": shared("sgd", "no_decay"),
    "SGDConfig.no_decay_patterns": shared("sgd", "no_decay_patterns"),
    "SGDConfig.groups": shared("sgd", "groups"),
    "SGDConfig.frozen": shared("sgd", "frozen"),
    "SGDConfig.frozen_spans": shared("sgd", "frozen_spans"),
    "SGDConfig.clip_norm": shared("sgd", "clip_norm"),
    "SGDConfig.clip_value": shared("sgd", "clip_value"),
    "LionConfig.lr": shared("lion", "lr"),
    "LionConfig.weight_decay": shared("lion", "weight_decay"),
    "LionConfig.no_decay": shared("lion", "no_decay"),
    "LionConfig.no_decay_patterns": shared("lion", "no_decay_patterns"),
    "LionConfig.groups": shared("lion", "groups"),
    "LionConfig.frozen": shared("lion", "frozen"),
    "LionConfig.frozen_spans": shared("lion", "frozen_spans"),
    "LionConfig.clip_norm": shared("lion", "clip_norm"),
    "LionConfig.clip_value": shared("lion", "clip_value"),
    "MuonConfig.lr": shared("muon", "lr"),
    "MuonConfig.weight_decay": shared("muon", "weight_decay"),
    "MuonConfig.no_decay": shared("muon", "no_decay"),
    "MuonConfig.no_decay_patterns": shared("muon", "no_decay_patterns"),
    "MuonConfig.groups": shared("muon", "groups"),
    "MuonConfig.frozen": shared("muon", "frozen"),
    "MuonConfig.frozen_spans": shared("muon", "frozen_spans"),
    "MuonConfig.clip_norm": shared("muon", "clip_norm"),
    "MuonConfig.clip_value": shared("muon", "clip_value"),
    "ScheduleFreeAdamWConfig.lr": shared("schedule_free_adamw", "lr"),
    "ScheduleFreeAdamWConfig.weight_decay": shared("schedule_free_adamw", "weight_decay"),
    "ScheduleFreeAdamWConfig.no_decay": shared("schedule_free_adamw", "no_decay"),
    "ScheduleFreeAdamWConfig.no_decay_patterns": shared("schedule_free_adamw", "no_decay_patterns"),
    "ScheduleFreeAdamWConfig.groups": shared("schedule_free_adamw", "groups"),
    "ScheduleFreeAdamWConfig.frozen": shared("schedule_free_adamw", "frozen"),
    "ScheduleFreeAdamWConfig.frozen_spans": shared("schedule_free_adamw", "frozen_spans"),
    "ScheduleFreeAdamWConfig.clip_norm": shared("schedule_free_adamw", "clip_norm"),
    "ScheduleFreeAdamWConfig.clip_value": shared("schedule_free_adamw", "clip_value"),
    "AnyPrecisionAdamWConfig.lr": shared("anyprecision_adamw", "lr"),
    "AnyPrecisionAdamWConfig.weight_decay": shared("anyprecision_adamw", "weight_decay"),
    "AnyPrecisionAdamWConfig.no_decay": shared("anyprecision_adamw", "no_decay"),
    "AnyPrecisionAdamWConfig.no_decay_patterns": shared("anyprecision_adamw", "no_decay_patterns"),
    "AnyPrecisionAdamWConfig.groups": shared("anyprecision_adamw", "groups"),
    "AnyPrecisionAdamWConfig.frozen": shared("anyprecision_adamw", "frozen"),
    "AnyPrecisionAdamWConfig.frozen_spans": shared("anyprecision_adamw", "frozen_spans"),
    "AnyPrecisionAdamWConfig.clip_norm": shared("anyprecision_adamw", "clip_norm"),
    "AnyPrecisionAdamWConfig.clip_value": shared("anyprecision_adamw", "clip_value"),
    "AdafactorConfig.lr": shared("adafactor", "lr"),
    "AdafactorConfig.weight_decay": shared("adafactor", "weight_decay"),
    "AdafactorConfig.no_decay": shared("adafactor", "no_decay"),
    "AdafactorConfig.no_decay_patterns": shared("adafactor", "no_decay_patterns"),
    "AdafactorConfig.groups": shared("adafactor", "groups"),
    "AdafactorConfig.frozen": shared("adafactor", "frozen"),
    "AdafactorConfig.frozen_spans": shared("adafactor", "frozen_spans"),
    "AdafactorConfig.clip_norm": shared("adafactor", "clip_norm"),
    "AdafactorConfig.clip_value": shared("adafactor", "clip_value"),
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
