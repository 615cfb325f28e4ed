"""Effects of the fields of a job itself, `[batch]`, `[evaluation]` and `[tracking]`."""

import contextlib
import io
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from setpoint.checkpoint.manifest import read_manifest
from setpoint.config.record.record import fingerprint
from setpoint.ops import alerts, prometheus, rank_health
from setpoint.track.config import Prometheus
from setpoint.track.jsonl import JsonlTracker
from setpoint.track.trackers import Tracker
from setpoint.train.build.components import build_components
from setpoint.train.callbacks.log import TIMING
from setpoint.train.config import Job
from setpoint.train.open import settings_of
from setpoint.train.run import train
from setpoint.train.run_name import run_directory_of

from ..small import events, loop_of, rows
from .observations import Row, logged, rates, updates, weights


def lengths(job: Job) -> tuple[int, int]:
    """Updates, and tokens in each."""
    seen = updates(job)
    return len(seen), seen[0].tokens


def portions(job: Job) -> tuple[int, tuple[int, ...]]:
    """Number and shape of the micro-batches."""
    return job.batch.accumulation, tuple(build_components(job).feed.take().batches[0].inputs.shape)


def rows_read(job: Job) -> list[int]:
    """Sequences of each step."""
    return [result.tokens // job.batch.sequence_length for result in updates(job)]


def deterministic(job: Job) -> bool:
    """PyTorch's deterministic mode during the job."""
    with settings_of(job):
        return torch.are_deterministic_algorithms_enabled()


def reports(job: Job) -> list[str]:
    """The HTML files in the run directory."""
    return [path.name for path in train(job).directory.glob("*.html")]


def described(job: Job) -> str | None:
    """The description that trackers get."""
    given: list[str | None] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JsonlTracker, "describe", lambda _, facts: given.append(facts.description))
        train(job)
    return given[0]


def told(job: Job) -> str:
    """The kind of progress display."""
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        train(job)
    shown = stream.getvalue()
    return "a bar" if "━" in shown else "lines" if "step 1/" in shown else "nothing"


def warned(job: Job) -> list[str]:
    """The cautions that the record of a run holds."""
    (start, *_) = [event for event in events(train(job).directory) if event["event"] == "start"]
    return [caution["code"] for caution in start.get("cautions", [])]


def columns(job: Job) -> list[str]:
    """Optional metrics in the last row."""
    row = rows(train(job).directory)[-1]
    return [name for name in row if name.startswith(("loss_", "grad_norm_", "param_", "update_"))]


def measured(job: Job) -> tuple[bool, bool]:
    """True if step times are measured, and if on the device."""
    times = loop_of(job).times
    return times.is_on, times.on_device


def peaks(job: Job) -> bool:
    """True if metrics include peak memory."""
    text = (train(job).directory / "metrics.jsonl").read_text()
    return "peak_rss" in TIMING and "peak_rss" in text


def listens(job: Job) -> tuple[str, int] | None:
    """Address and port of the Prometheus endpoint."""
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
    """Interval and file of the system sampler."""
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
    """Requests and commands sent by the alerts at the end of a run."""
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
        # The run itself asks git and the system by commands, too.
        patch.setattr(alerts, "subprocess", SimpleNamespace(**{**vars(subprocess), "run": run}))
        train(job)
    return [each if len(each) == 2 else (each[0], each[1], sorted(each[2]), each[3])
            for each in found]  # fmt: skip


def stalls(job: Job) -> list[float]:
    """Seconds after which each alert reports a stall."""
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


def judged(job: Job) -> list[dict[str, Any]]:
    """The rows of evaluations."""
    return [row for row in rows(train(job).directory) if row["kind"] == "evaluation"]


def keys(job: Job) -> set[str]:
    """Their keys."""
    return {key for row in judged(job) for key in row}


def steps(job: Job) -> list[int]:
    """The steps of evaluations."""
    return [row["step"] for row in judged(job)]


def ended(job: Job) -> tuple[int, bool]:
    """The final step of a run, and whether it stopped early."""
    outcome = train(job)
    return outcome.final_position.step, outcome.reason is not None


def chosen(job: Job) -> tuple[str, float | None]:
    """The best checkpoint, and the value that selected it."""
    folder = train(job).directory / "checkpoints"
    best = (folder / "best").read_text().strip()
    return best, read_manifest(folder / best).metric


SOURCE = "{type=random, documents=9, length=90, alphabet=8, seed=3}"
WEB = (f"evaluation.datasets=[{{name=web, sources=[{SOURCE}]}}]",)
EVERY = ("evaluation.every=1 steps", "checkpoint.every=1 steps", "schedule=constant")
# Nothing is learned at such a rate, so that no evaluation is better than the first.
STILL = ("evaluation.every=1 steps", "optimizer.lr=1e-30", "schedule=constant", "duration=8 steps")
STOP = (*STILL, "evaluation.early_stopping.patience=2")
# What is learned here is a gain at each step, and a small one.
LEARNS = (*EVERY, "evaluation.early_stopping.patience=1", "optimizer.lr=1e-3", "duration=8 steps")
ACCURACY = ("evaluation.accuracy=true",)
BEST = "evaluation.best"
RAMP = "batch.ramp={start: 2, increment: 2, over: 40 tokens}"
ONE_ROW = ("batch.micro_size=1", "batch.accumulation=4")
ONE_MORE = "batch.ramp.increment=1"


ROWS: dict[str, Row] = {
    "Job.name": ("name=other", run_directory_of),
    "Job.experiment": ("experiment=e", run_directory_of),
    "Job.description": ("description=of the run in words", described),
    "Job.workspace": ("workspace=elsewhere", run_directory_of),
    "Job.seed": ("seed=7", weights),
    "Job.duration": ("duration=6 steps", lengths, (), (6, 64)),
    "Job.deterministic": ("deterministic=true", deterministic, (), True),
    "Job.schedule": ("schedule=constant", rates, (), [0.01] * 4),
    "Job.evaluation": ("evaluation=null", logged),
    "Job.silence": ("silence=learning-rate-high", warned,
        ("optimizer.lr=0.2", "evaluation.every=4 steps"), []),
    "Job.user": ("user.note=x", fingerprint),
    "BatchConfig.global_size": ("batch.global_size=8", lengths, (), (4, 128), ("accumulation",)),
    "BatchConfig.micro_size": ("batch.micro_size=4", portions, (), (2, (4, 16))),
    "BatchConfig.accumulation": ("batch.accumulation=3", portions, (), (3, (2, 16))),
    "BatchConfig.sequence_length": ("batch.sequence_length=8", portions, (), (2, (2, 8))),
    "BatchConfig.ramp": (RAMP, rows_read, (), [2, 2, 4, 4]),
    "BatchRamp.start": ("batch.ramp.start=1", rows_read, (RAMP, *ONE_ROW, ONE_MORE), [1, 2, 4, 4]),
    "BatchRamp.increment": (ONE_MORE, rows_read, (RAMP, *ONE_ROW), [2, 3, 4, 4]),
    "BatchRamp.over": ("batch.ramp.over=1 steps", rows_read, (RAMP,), [2, 4, 4, 4]),
    "Evaluation.every": ("evaluation.every=1 steps", logged),
    "Evaluation.sequences": ("evaluation.sequences=3", logged),
    "Tracking.every": ("tracking.every=2 steps", logged),
    "Tracking.progress": ("tracking.progress=lines", told, (), "lines"),
    "Tracking.trackers": ("tracking.trackers=[]", logged, (), []),
    "Tracking.report": ("tracking.report=true", reports, (), ["report.html"]),
    "Metrics.step_time": ("tracking.metrics.step_time=none", measured, (), (False, False)),
    "Metrics.memory": ("tracking.metrics.memory=false", peaks, START, False),
    "Metrics.ema": ("tracking.metrics.ema=0.9", columns, START, ["loss_ema"]),
    "Metrics.grad_norms": ("tracking.metrics.grad_norms=[groups]", columns, START,
        ["grad_norm_decay", "grad_norm_no_decay"]),
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
    "AlertCommand.command": ("tracking.alerts.0.command=[echo]", sends, RUNS, [("echo", 10.0)]),
    "AlertCommand.events": ("tracking.alerts.0.events=[failed]", sends, RUNS, []),
    "AlertCommand.timeout": ("tracking.alerts.0.timeout=3", sends, RUNS, [("true", 3.0)]),
    "AlertCommand.stalled_after": ("tracking.alerts.0.stalled_after=5", stalls, RUNS, [5.1]),
    "Webhook.url": ("tracking.alerts.0.url=env:THERE", sends, POSTS),
    "Webhook.headers": ("tracking.alerts.0.headers={X: 'env:THERE'}", sends, POSTS),
    "Webhook.body": ("tracking.alerts.0.body={text: hi}", sends, POSTS),
    "Webhook.retries": ("tracking.alerts.0.retries=1", sends, POSTS),
    "Webhook.events": ("tracking.alerts.0.events=[failed]", sends, POSTS, []),
    "Webhook.timeout": ("tracking.alerts.0.timeout=3", sends, POSTS),
    "Webhook.stalled_after": ("tracking.alerts.0.stalled_after=5", stalls, POSTS, [5.1]),
    "Evaluation.datasets": (WEB[0], keys, (), None),
    "Evaluation.before_training": ("evaluation.before_training=true", steps, (), [0, 3, 4]),
    "Evaluation.accuracy": (ACCURACY[0], keys, (), None),
    "Evaluation.best": ("evaluation.best={metric=perplexity}", chosen, EVERY, None),
    "Evaluation.early_stopping": ("evaluation.early_stopping={patience=2}", ended, STILL,
        (3, True)),
    "EvaluationData.name": ("evaluation.datasets.0.name=mine", keys, WEB, None),
    "EvaluationData.sources": ("evaluation.datasets.0.sources.0.seed=4", judged, WEB, None),
    "EvaluationData.sequences": ("evaluation.datasets.0.sequences=2", judged, WEB, None),
    "Best.data": (f"{BEST}.data=web", chosen, (*WEB, *EVERY), None),
    "Best.metric": (f"{BEST}.metric=accuracy", chosen, (*ACCURACY, *EVERY), None),
    "Best.direction": (f"{BEST}.direction=max", chosen, EVERY, None),
    "EarlyStopping.patience": ("evaluation.early_stopping.patience=3", ended, STOP, (4, True)),
    "EarlyStopping.min_delta": ("evaluation.early_stopping.min_delta=1", ended, LEARNS, (2, True)),
}  # fmt: skip
