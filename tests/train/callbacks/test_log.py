"""Rows of metrics, and their figures of speed."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from setpoint.config import RUNTIME
from setpoint.track.config import TrackerConfig
from setpoint.track.progress import Progress
from setpoint.track.run_directory import RunDirectory
from setpoint.track.trackers import Trackers
from setpoint.train.build.components import build_components, data_line
from setpoint.train.callbacks.log import LogCallback
from setpoint.train.position import Position
from setpoint.train.row_metrics import LossMean
from setpoint.train.run import train
from setpoint.train.verdict import StepResult

from ...support.variants import forget, known
from ..small import rows, small_job, train_rows

UPDATE = StepResult(loss=2.0, cross_entropy=1.9, grad_norm=0.5, lr=0.01, tokens=64)


@pytest.mark.parametrize(
    ("every", "logged"), [("200 tokens", [4, 7, 10]), ("never", []), ("1 h", [10])]
)
def test_rows(tmp_path: Path, every: str, logged: list[int]) -> None:
    flags = ("duration=10 steps", f"tracking.every={every}", "evaluation=null")
    found = rows(train(small_job(tmp_path, *flags)).directory)
    assert [row["step"] for row in found] == logged


def callback_of(peak_flops: float | None) -> LogCallback:
    """The callback of a run of which nothing but its use of the hardware is known."""
    use = SimpleNamespace(flops_per_token=1e6, total_peak=peak_flops)
    run: Any = SimpleNamespace(
        trackers=Trackers(), progress=Progress(), mean=LossMean(), utilization=use
    )
    return LogCallback(run)


def test_speed_and_utilization() -> None:
    log = callback_of(peak_flops=1e9)
    log.logged = Position(step=10, tokens=1000, seconds=5.0)
    log.mean.sum, log.mean.steps = 9.0, 3
    row = log.row(Position(step=20, tokens=2000, epochs=0.5, seconds=7.0), UPDATE)
    assert row["tokens_per_second"] == 500.0
    assert row["mfu"] == 500.0 * 1e6 / 1e9
    assert row["mean_loss"] == 3.0
    assert (row["loss"], row["cross_entropy"], row["epoch"]) == (2.0, 1.9, 0.5)
    log = callback_of(peak_flops=None)
    log.logged, log.mean.steps = Position(), 1
    assert log.row(Position(step=1, tokens=64, seconds=1.0), UPDATE)["mfu"] is None


def test_lines_of_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(small_job(tmp_path, "duration=2 steps", "tracking.progress=lines"))
    device, data, memory, *lines = capsys.readouterr().out.splitlines()
    assert device == "device: cpu, 1 rank, fp32"
    assert data == (
        "data: 36 documents, 7.24k tokens to train on, 805 held out; 2 steps = 0.0188 epochs"
    )
    assert memory.startswith("memory: parameters ")
    assert [line.split("  ")[0] for line in lines[:2]] == ["step 1/2", "step 2/2"]
    assert lines[1].split("  ")[-1] == "0:00 left"
    assert lines[2].startswith("step 2: held-out loss ")


def test_an_epoch_of_packed_documents_has_no_fixed_number_of_steps(tmp_path: Path) -> None:
    job = small_job(tmp_path, "duration=2 epochs", "data.packing.method=next_fit")
    assert "; 2 epochs = about " in data_line(job, build_components(job))


def test_means_of_the_loss_since_the_last_row_and_over_all_steps(tmp_path: Path) -> None:
    """A resume between two rows goes on with both, and rows have the rate of each group."""
    flags = ("duration=11 steps", "tracking.every=5 steps", "checkpoint.every=3 steps",
             "evaluation=null", "checkpoint.keep=null", "tracking.metrics.ema=0.8",
             "optimizer.groups=[{pattern: embedding, lr_multiplier: 0.5}]")  # fmt: skip
    each = rows(train(small_job(tmp_path / "each", *flags, "tracking.every=1 steps")).directory)
    assert all(row["mean_loss"] == row["loss"] for row in each)
    job = small_job(tmp_path, *flags)
    run = train(job).directory
    found = rows(run)
    # The last row, which only the end asks for, is not the mean of a step.
    for row, span in zip(found, (range(5), range(5, 10), range(5, 11)), strict=True):
        assert row["mean_loss"] == sum(each[step]["loss"] for step in span) / len(span)
        weights = [0.8 ** (row["step"] - 1 - step) for step in range(row["step"])]
        losses = [each[step]["loss"] for step in range(row["step"])]
        mean = sum(w * loss for w, loss in zip(weights, losses, strict=True)) / sum(weights)
        assert row["loss_ema"] == pytest.approx(mean, rel=1e-12)
        assert row["lr_decay"] == row["lr"] == 2 * row["lr_/embedding/ decay x 0.5"]
    for step in (9, 11):
        shutil.rmtree(run / "checkpoints" / f"step-{step:08d}")
    (run / "checkpoints" / "latest").write_text("step-00000006\n")
    assert train(job).started.step == 6
    assert rows(run) == found


SOURCES = """data.sources=[{type: random, name: a, documents: 30, length: 80, alphabet: 8},
    {type: random, name: b, documents: 10, length: 80, alphabet: 8}]"""


def test_rows_have_figures_of_each_source(tmp_path: Path) -> None:
    """Also after a resume between two rows; an epoch has those of all documents."""
    flags = ("duration=1 epochs", "tracking.every=5 steps", "evaluation.every=last_step",
             "checkpoint.every=never", "checkpoint.at=[6]", SOURCES)  # fmt: skip
    job = small_job(tmp_path, *flags)
    ended = train(job)
    found = train_rows(ended.directory)
    spans = [b["step"] - a["step"] for a, b in zip([{"step": 0}, *found], found, strict=False)]
    assert [row["sequences_a"] + row["sequences_b"] for row in found] == [4 * n for n in spans]
    losses = [row["mean_loss"] for row in found]
    # The last mean is over the interval before as well.
    losses[-1] = (losses[-1] * sum(spans[-2:]) - losses[-2] * spans[-2]) / spans[-1]
    for row, loss, steps in zip(found, losses, spans, strict=True):
        targets, nats = (
            [row[f"target_tokens_{name}"] for name in "ab"],
            [row[f"target_tokens_{name}"] * row[f"cross_entropy_{name}"] for name in "ab"],
        )
        assert sum(targets) == 4 * 16 * steps
        assert sum(nats) / sum(targets) == pytest.approx(loss, rel=1e-6)
    a, b = (sum(row[f"sequences_{name}"] for row in found) for name in "ab")
    assert 2.5 < a / b < 3.5 and len(ended.components.train_data) <= a + b
    for step in ended.components.train_data, ended.components.held_out:
        assert step is not None and step.sources == ("a", "b")
    run = ended.directory
    between, last = sorted((run / "checkpoints").glob("step-*"))
    shutil.rmtree(last)
    (run / "checkpoints" / "latest").write_text(f"{between.name}\n")
    assert train(job).started.step == 6
    assert train_rows(run) == found


class Kept:
    """A tracker that writes down what it is called with."""

    class Config(TrackerConfig, type="kept-of-a-test", role=RUNTIME):
        """Its section."""

    def __init__(self, config: Kept.Config, *, run_directory: RunDirectory) -> None:
        self.file = run_directory.logs / "kept.txt"

    def write(self, row: dict[str, Any]) -> None:
        self.add(f"{row['kind']} {row['step']}")

    def rewind(self, step: int) -> None:
        self.add(f"rewind {step}")

    def close(self) -> None:
        self.add("close")

    def add(self, line: str) -> None:
        with self.file.open("a") as file:
            file.write(f"{line}\n")


OWN = forget(TrackerConfig, __name__)


def test_a_tracker_of_ones_own(tmp_path: Path) -> None:
    with known(TrackerConfig, OWN):
        flags = ("schedule=constant", "evaluation=null", "tracking.trackers=[kept-of-a-test]")
        run = train(small_job(tmp_path, *flags, "duration=2 steps")).directory
        train(small_job(tmp_path, *flags, "duration=3 steps"))
        kept = (run / "logs" / "kept.txt").read_text().split("\n")
        assert kept == ["train 1", "train 2", "close", "rewind 2", "train 3", "close", ""]
