"""The section `[tracking]`: what a run logs, where to, and what people see of it."""

from __future__ import annotations

from typing import Literal

from setpoint.config import RUNTIME, Config, Period, field


class TrackerConfig(Config, role=RUNTIME):
    """What all trackers share: each receives every row of metrics."""


class Jsonl(TrackerConfig, type="jsonl", owner="setpoint.track.jsonl:build_jsonl", role=RUNTIME):
    """`metrics.jsonl` in the run directory: one row a line, at full precision."""


class Tracking(Config, role=RUNTIME):
    """What a run logs, where to, and what people see of it."""

    every: Period = field(default=Period("10 steps"))
    """How often a row of metrics is written and shown."""

    progress: Literal["auto", "bar", "lines", "none"] = "auto"
    """`auto` shows a bar on a terminal and a line for each row of metrics elsewhere."""

    trackers: tuple[TrackerConfig, ...] = field(factory=lambda: (Jsonl(),))
    """Where the rows go; an empty list logs nothing."""
