"""The section `[tracking]`: logging, progress and trackers."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Literal

from setpoint.config import RUNTIME, Caution, Config, Problem, check, field
from setpoint.units import Period

NO_METRICS = "no-metrics-file"


class TrackerConfig(Config, role=RUNTIME):
    """Tracker (logger): each receives every row of metrics."""


class Jsonl(TrackerConfig, type="jsonl", owner="setpoint.track.jsonl:build_jsonl", role=RUNTIME):
    """`metrics.jsonl` in the run directory: one row a line, at full precision."""


class Tracking(Config, role=RUNTIME):
    """Logging, progress and trackers."""

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
    """Logging interval (log_every): how often metrics are written and shown."""

    progress: Literal["auto", "bar", "lines", "none"] = field(
        default="auto", also_called=("disable_tqdm", "enable_progress_bar", "progress_bar")
    )
    """Progress display. auto: a bar on a terminal, lines elsewhere."""

    trackers: tuple[TrackerConfig, ...] = field(
        factory=lambda: (Jsonl(),), also_called=("report_to", "loggers", "logger")
    )
    """Trackers (loggers) of metrics; an empty list logs nothing."""

    flops: Literal["palm", "palm_causal", "all_parameters"] = field(
        default="palm", also_called=("mfu_formula", "flops_formula")
    )
    """FLOPs per token for MFU. palm: 6 N + 12 L H Q S, N being the parameters of matrix products;
    palm_causal: half the attention term; all_parameters: N being all parameters."""

    peak_flops: float | None = field(
        default=None, gt=0, lt=inf, also_called=("gpu_peak_flops", "flops_promised")
    )
    """Peak FLOPS of one device for MFU; null: the vendor's number for bf16, where known."""

    @check
    def _check_trackers(self) -> Iterator[Problem]:
        writers = [index for index, each in enumerate(self.trackers) if isinstance(each, Jsonl)]
        for index in writers[1:]:
            yield Problem(
                f"trackers.{index}",
                f"writes metrics.jsonl, as tracker {writers[0]} does; each row would stand twice",
                hint="Leave one of them out.",
            )

    @check(cautions={NO_METRICS: "trackers replace the one that writes metrics.jsonl"})
    def _check_metrics(self) -> Iterator[Caution]:
        if self.trackers and not any(isinstance(each, Jsonl) for each in self.trackers):
            yield Caution(
                NO_METRICS,
                "trackers",
                "no tracker writes metrics.jsonl, so that `setpoint compare` has nothing to show, "
                "nor has a search",
                hint="Keep both with --tracking.trackers.append jsonl.",
            )
