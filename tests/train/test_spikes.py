"""Loss spikes: what is one, and what becomes of the step."""

from __future__ import annotations

from pathlib import Path

import pytest

from setpoint.config import ConfigError, RunError, resolve
from setpoint.resilience.config import Spike
from setpoint.train.run import train
from setpoint.train.verdict import SpikedSteps

from .poison import Poison, by_hand, check_rows, same
from .small import events, rows, small_job

FLAGS = (
    "duration=14 steps", "evaluation=null", "checkpoint.keep=null", "schedule=constant",
    "resilience.spike={window=6, factor=1.5}",
)  # fmt: skip


def acted(losses: list[float], **options: float) -> list[float]:
    """Those that are acted on; all others are trained on."""
    spikes = SpikedSteps(resolve(Spike(window=4, **options)))  # pyright: ignore[reportArgumentType]
    found: list[float] = []
    for loss in losses:
        acts = spikes.acts_on(loss)
        spikes.note(loss, trained_on=not acts)
        found += [loss] if acts else []
    return found


def test_a_spike_is_above_a_multiple_and_above_deviations() -> None:
    """Of 4, 3, 5, 4 the median is 4 and the median absolute deviation 0.5."""
    before = [4.0, 3.0, 5.0, 4.0]
    high = 4 + 8 * 1.4826 * 0.5 + 0.01
    for loss, options in ((6.01, {"factor": 1.5, "deviations": 0}), (high, {"factor": 1})):
        assert acted([*before, loss - 0.02], **options) == []
        assert acted([*before, loss], **options) == [loss]
    assert acted([*before, 9.0], factor=1.5, deviations=8) == []
    # The first ones have nothing to be compared with, and a loss may be negative.
    assert acted([9.0, 1.0, 99.0, 1.0, 1.0], factor=1.5) == []
    assert acted([-4.0, -4.0, -4.0, -4.0, -3.9, 0.0], factor=1.5) == [0.0]
    # A level that stays is trained on where patience lasts until it is the median.
    assert acted([*before, *[9.0] * 5], factor=1.5, deviations=0, patience=2) == [9.0] * 4
    assert acted([*before, *[9.0] * 5], factor=1.5, deviations=0, patience=3) == []


def test_a_skipped_spike_changes_nothing_also_after_a_resume(
    tmp_path: Path, poison: Poison
) -> None:
    """The window goes over the checkpoint of step 8, and the tenth batch is five times as bad."""
    job = small_job(tmp_path, *FLAGS, "model.dropout=0")  # which is drawn by the step
    expected, results = by_hand(job, 9, -1, 4)
    poison(10, value=5.0)
    train(resolve(job.evolve(duration="8 steps")), tmp_path / "run")
    ended = train(job, tmp_path / "run")
    assert ended.started.step == 8 and same(ended.components, expected)
    found = [row for row in rows(ended.directory) if row["kind"] == "train"]
    assert [row["skipped_steps"] for row in found] == [0] * 9 + [1] * 5
    # Step 10 is row 10 all the same, whose loss is that of the batch.
    assert [row["loss"] for row in found[10:]] == [result.loss for result in results[9:]]
    (event,) = events(ended.directory, "skip")
    assert (event["step"], event["cause"], event["in_a_row"]) == (10, "spike", 1)


def test_a_rollback_goes_on_behind_a_spike(tmp_path: Path, poison: Poison) -> None:
    job = small_job(tmp_path, *FLAGS, "resilience.spike.policy=rollback")
    expected, results = by_hand(job, 8, -2, 6)
    poison(10, value=5.0)
    ended = train(job)
    assert same(ended.components, expected)
    check_rows(ended.directory, results)
    (event,) = events(ended.directory, "rollback")
    assert (event["step"], event["failed"], event["cause"]) == (8, 10, "spike")
    with pytest.raises(ConfigError, match="rollback needs a checkpoint, but none is saved"):
        small_job(tmp_path, *FLAGS, "resilience.spike.policy=rollback", "checkpoint.every=never")


def test_a_run_that_does_not_go_on_says_by_how_much(tmp_path: Path, poison: Poison) -> None:
    poison(10, 11, value=5.0)
    with pytest.raises(RunError) as caught:
        train(small_job(tmp_path, *FLAGS, "resilience.spike.policy=fail"))
    told = str(caught.value)
    assert told.startswith("step 10: the loss is ") and "not finite" not in told
    assert "a spike: the median of the 6 steps before is " in told
    assert told.endswith("resilience.spike.policy = skip or rollback")
    with pytest.raises(RunError, match=r"step 11.*as many as resilience.spike.policy.limit allows"):
        train(small_job(tmp_path, *FLAGS, "resilience.spike.policy.limit=1", "name=other"))
