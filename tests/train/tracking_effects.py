"""What the fields of `[tracking]` about metrics change."""

from __future__ import annotations

from typing import Any

from setpoint.resilience.signals import StopRequest
from setpoint.train.build.components import build_components
from setpoint.train.callbacks.log import TIMING
from setpoint.train.config import Job
from setpoint.train.run import train
from setpoint.train.step.loop import Loop
from setpoint.train.step.position import Position

from .small import rows


def columns(job: Job) -> list[str]:
    """The names in the last row that only some metrics have, but for those of time."""
    row = rows(train(job).directory)[-1]
    return [name for name in row if name.startswith(("loss_", "grad_norm_", "param_", "update_"))]


def measured(job: Job) -> tuple[bool, bool]:
    """Whether times are measured, and by the device."""
    times = Loop(job, build_components(job), [], StopRequest(), Position()).times
    return times.is_on, times.on_device


def peaks(job: Job) -> bool:
    """Whether rows have the most memory."""
    text = (train(job).directory / "metrics.jsonl").read_text()
    return "peak_rss" in TIMING and "peak_rss" in text


START = ("evaluation=null", "duration=1 steps")
LAYERS = ["layers", "embedding", "norm", "output"]

ROWS: dict[str, tuple[Any, ...]] = {
    "Metrics.step_time": ("tracking.metrics.step_time=none", measured, (), (False, False)),
    "Metrics.memory": ("tracking.metrics.memory=false", peaks, START, False),
    "Metrics.ema": ("tracking.metrics.ema=0.9", columns, START, ["loss_ema"]),
    "Metrics.grad_norms": (
        "tracking.metrics.grad_norms=[groups]", columns, START,
        ["grad_norm_decay", "grad_norm_no_decay"],
    ),
    "Metrics.param_norms": ("tracking.metrics.param_norms=[model]", columns, START,
                            ["param_norm"]),
    "Metrics.update_ratios": ("tracking.metrics.update_ratios=[layers]", columns, START,
                              [f"update_ratio_{name}" for name in sorted(LAYERS)]),
}  # fmt: skip
