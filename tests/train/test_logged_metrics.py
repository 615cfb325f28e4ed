"""Metrics that a user's models, losses and callbacks log, in the rows of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from setpoint.config import Config, RunError, field
from setpoint.model.config import ModelConfig
from setpoint.shapes.logged import BEGINNINGS, TAKEN, log
from setpoint.sweep.comparison import ComparedRun, cell_of
from setpoint.sweep.run_metrics import MetricPath, RunMetrics
from setpoint.train.config import Job
from setpoint.train.loop import Callback, Loop, Phase
from setpoint.train.run import train
from setpoint.train.verdict import StepResult

from ..support.snapshots import refused
from ..support.variants import forget, known, sections
from .small import rows, small_job, train_rows

FLAGS = ("duration=12 steps", "tracking.every=5 steps", "evaluation.every=4 steps")


class Counting(nn.Module):
    """Logs the mean of its tokens, and how often it is called."""

    class Config(ModelConfig, type="counting"):
        """Its size."""

        dim: int = 8

    def __init__(self, config: Counting.Config, *, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, config.dim)
        self.output = nn.Linear(config.dim, vocab_size)
        self.seen: list[Tensor] = []

    def forward(self, tokens: Tensor) -> Tensor:
        log(token_mean=tokens.double().mean())
        log(calls=1, reduce="sum")
        if self.training:
            self.seen.append(tokens.double().mean())
        return self.output(self.embedding(tokens))


class Logging(Callback):
    """Logs the square of the step on some of the ranks."""

    class Config(Config):
        """Time and ranks of logging."""

        late: bool = False
        """Whether it logs after the row is written."""
        ranks: tuple[int, ...] = field(default=(0,))
        """The ranks that log."""

    def __init__(self, config: Logging.Config, *, job: Job, components: Any, run: Any) -> None:
        self.logs = components.world.rank in config.ranks
        self.phase = Phase.LAST if config.late else Phase.OBSERVE

    def before_update(self, loop: Loop) -> None:
        if self.logs and loop.position.step % 2:
            loop.log(odd=loop.position.step, reduce="max")

    def after_step(self, loop: Loop, result: StepResult) -> None:
        if self.logs:
            loop.log(square=torch.tensor(loop.position.step) ** 2)


VARIANTS = forget(ModelConfig, __name__)


@pytest.fixture
def own() -> Iterator[None]:
    with sections(Job, logging=Logging.Config), known(ModelConfig, VARIANTS):
        yield


def job_of(folder: Path, *flags: str) -> Job:
    flags = ("model=counting", *FLAGS, "logging={}", *flags)
    return small_job(folder, *flags, without=("type", "layers", "heads", "dropout"))


def logged(run: Path) -> list[dict[str, Any]]:
    names = ("step", "token_mean", "calls", "square", "odd")
    return [{name: row[name] for name in names if name in row} for row in train_rows(run)]


@pytest.mark.usefixtures("own")
def test_rows_have_what_was_logged_since_the_last_one(tmp_path: Path) -> None:
    outcome = train(job_of(tmp_path))
    seen = cast("Counting", outcome.components.model).seen
    means = [math.fsum(map(float, seen[a:b])) / (b - a) for a, b in ((0, 10), (10, 20), (20, 24))]
    found = logged(outcome.directory)
    assert [row.pop("token_mean") for row in found] == pytest.approx(means, rel=1e-15)
    # Two micro-batches a step; evaluations, at steps 4, 8 and 12, are not in it.
    assert found == [
        {"step": 5, "calls": 10, "square": 11.0, "odd": 3},
        {"step": 10, "calls": 10, "square": 66.0, "odd": 9},
        {"step": 12, "calls": 4, "square": 132.5, "odd": 11},
    ]
    entry = ComparedRun("a", "a", outcome.directory)
    entry.metrics = RunMetrics.read(outcome.directory)
    assert cell_of(entry, MetricPath.parse("train.square.max")) == 132.5


@pytest.mark.usefixtures("own")
def test_a_run_that_stops_between_two_rows_logs_the_same(tmp_path: Path) -> None:
    whole = logged(train(job_of(tmp_path), directory=tmp_path / "whole").directory)
    for until in (3, 7, None):
        train(job_of(tmp_path), directory=tmp_path / "parts", until=until)
    assert logged(tmp_path / "parts") == whole


@pytest.mark.usefixtures("own")
def test_a_metric_that_no_row_would_have_is_refused(tmp_path: Path) -> None:
    with refused(RunError):
        train(job_of(tmp_path, "logging.late=true"))


def test_each_column_of_setpoints_own_is_refused(tmp_path: Path) -> None:
    """On rows with all that `tracking.metrics` has, experts, and several sources."""
    run = train(
        small_job(
            tmp_path,
            "duration=2 steps",
            "model.moe={experts: 4, top_k: 2}",
            "tracking.metrics={ema: 0.9, grad_norms: [layers], param_norms: [model, layers], "
            "update_ratios: [model]}",
            "optimizer.no_decay_patterns=[norm]",
            "resilience.non_finite=skip",
        )
    ).directory
    for row in rows(run):
        if row["kind"] == "train":
            free = [name for name in row if name not in TAKEN and not name.startswith(BEGINNINGS)]
            assert not free
