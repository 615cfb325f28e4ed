"""What the fields of `[tracking]` about metrics change."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from setpoint.ops import alerts, prometheus, rank_health
from setpoint.resilience.signals import StopRequest
from setpoint.track.config import Prometheus
from setpoint.track.trackers import Tracker
from setpoint.train.build.components import build_components
from setpoint.train.callbacks.log import TIMING
from setpoint.train.config import Job
from setpoint.train.loop import Loop
from setpoint.train.position import Position
from setpoint.train.run import train

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


def listens(job: Job) -> tuple[str, int] | None:
    """Where a run listens for Prometheus."""
    found: list[tuple[str, int]] = []

    class Fake(Tracker):
        port = 1

        def __init__(self, config: Prometheus, *, run_directory: Any) -> None:
            found.append((config.address, config.port))

        def write(self, row: dict[str, Any]) -> None:
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prometheus, "PrometheusTracker", Fake)
        train(job)
    return found[0] if found else None


def sampled(job: Job) -> tuple[float, str] | None:
    """How often the machine is sampled, and where to."""
    found: list[tuple[float, str]] = []

    class Fake(rank_health.SystemSampler):
        def __init__(self, every: float, path: Path, *given: Any) -> None:
            found.append((every, path.name))
            super().__init__(every, path, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_health, "SystemSampler", Fake)
        train(job)
    return found[0] if found else None


def sends(job: Job) -> list[Any]:
    """What the alerts of a run do at its end."""
    found: list[Any] = []

    def post(request: Any, timeout: float) -> Any:
        found.append((request.full_url, request.headers, json.loads(request.data), timeout))
        raise ConnectionError

    def run(command: Any, timeout: float, **given: Any) -> Any:
        found.append((*command, timeout))
        return SimpleNamespace(returncode=0)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("here", "there"):
            patch.setenv(name.upper(), f"http://{name}")
        patch.setattr(alerts, "BACKOFF", 0.0)
        patch.setattr("urllib.request.urlopen", post)
        patch.setattr("subprocess.run", run)
        train(job)
    return [each if len(each) == 2 else (each[0], each[1], sorted(each[2]), each[3])
            for each in found]  # fmt: skip


def stalls(job: Job) -> list[float]:
    """After how long each alert tells of a stall."""
    found: list[float] = []

    clock = [0.0]

    def sends(self: alerts.Alert, event: str, message: str) -> None:
        if event == "stalled":
            found.append(clock[0])

    def passes(self: alerts.Alert) -> Any:
        self._progressed = 0.0
        for clock[0] in (4.9, 5.1, 1799.0, 1801.0):
            self._look_for_stall()
        return self

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alerts.Alert, "send", sends)
        patch.setattr(alerts.Alert, "__enter__", passes)
        patch.setattr(alerts, "time", SimpleNamespace(monotonic=lambda: clock[0]))
        patch.setenv("HERE", "http://127.0.0.1:9")  # where nothing listens
        train(job)
    return found


START = ("evaluation=null", "duration=1 steps")
LISTENS = ("tracking.trackers.append={type: prometheus}", *START)
LAYERS = ["layers", "embedding", "norm", "output"]

RUNS = ("tracking.alerts=[{type: command, command: [true]}]", *START)
POSTS = ("tracking.alerts=[{type: webhook, url: 'env:HERE', retries: 0}]", *START)

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
    "Prometheus.port": ("tracking.trackers.1.port=0", listens, LISTENS, ("127.0.0.1", 0)),
    "Prometheus.address": ("tracking.trackers.1.address=0.0.0.0", listens, LISTENS,
                           ("0.0.0.0", 9464)),
    "Tracking.system": ("tracking.system={}", sampled, START, (15.0, "system.jsonl")),
    "System.every": ("tracking.system.every=5", sampled, ("tracking.system={}", *START),
                     (5.0, "system.jsonl")),
    "System.ranks": ("tracking.system.ranks=all", sampled, ("tracking.system={}", *START),
                     (15.0, "system-rank-0.jsonl")),
    "Tracking.alerts": (RUNS[0], sends, START, [("true", 10.0)]),
    "Command.command": ("tracking.alerts.0.command=[echo]", sends, RUNS, [("echo", 10.0)]),
    "Command.events": ("tracking.alerts.0.events=[failed]", sends, RUNS, []),
    "Command.timeout": ("tracking.alerts.0.timeout=3", sends, RUNS, [("true", 3.0)]),
    "Command.stalled_after": ("tracking.alerts.0.stalled_after=5", stalls, RUNS, [5.1]),
    "Webhook.url": ("tracking.alerts.0.url=env:THERE", sends, POSTS),
    "Webhook.headers": ("tracking.alerts.0.headers={X: 'env:THERE'}", sends, POSTS),
    "Webhook.body": ("tracking.alerts.0.body={text: hi}", sends, POSTS),
    "Webhook.retries": ("tracking.alerts.0.retries=1", sends, POSTS),
    "Webhook.events": ("tracking.alerts.0.events=[failed]", sends, POSTS, []),
    "Webhook.timeout": ("tracking.alerts.0.timeout=3", sends, POSTS),
    "Webhook.stalled_after": ("tracking.alerts.0.stalled_after=5", stalls, POSTS, [5.1]),
}  # fmt: skip
