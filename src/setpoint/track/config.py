"""The section `[tracking]`: what a run logs, where to, and what people see of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from setpoint.config import RUNTIME, Config, Period, Problem, check, field


class TrackerConfig(Config, role=RUNTIME):
    """What all trackers share: each receives every row of metrics."""


class Jsonl(TrackerConfig, type="jsonl", owner="setpoint.track.jsonl:build_jsonl", role=RUNTIME):
    """`metrics.jsonl` in the run directory: one row a line, at full precision."""


class Tracking(Config, role=RUNTIME):
    """What a run logs, where to, and what people see of it."""

    every: Period = field(
        default=Period("10 steps"),
        tags=("cadence",),
        also_called=(
            "logging_steps",
            "logging_strategy",
            "log_interval",
            "log_freq",
            "log_every",
            "log_every_n_steps",
        ),
    )
    """How often a row of metrics is written and shown."""

    progress: Literal["auto", "bar", "lines", "none"] = field(
        default="auto", also_called=("disable_tqdm", "enable_progress_bar", "progress_bar")
    )
    """`auto` shows a bar on a terminal and a line for each row of metrics elsewhere."""

    trackers: tuple[TrackerConfig, ...] = field(
        factory=lambda: (Jsonl(),), also_called=("report_to", "loggers", "logger")
    )
    """Where the rows go; an empty list logs nothing."""

    @check
    def _check_trackers(self) -> Iterator[Problem]:
        writers = [index for index, each in enumerate(self.trackers) if isinstance(each, Jsonl)]
        for index in writers[1:]:
            yield Problem(
                f"trackers.{index}",
                f"writes metrics.jsonl, as tracker {writers[0]} does; each row would stand twice",
                hint="Leave one of them out.",
            )
