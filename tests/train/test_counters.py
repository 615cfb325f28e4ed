"""Durations, schedules and throughput are right where targets are masked."""

from __future__ import annotations

from pathlib import Path

from setpoint.train.run import train

from .small import rows, small_job

MASKED = ("loss.ignore_index=33", "evaluation=null", "checkpoint.every=never", "model.dropout=0")
TOKENS = 4 * 16  # of a step


def test_a_duration_in_tokens_ends_with_its_schedule(tmp_path: Path) -> None:
    job = small_job(tmp_path, f"duration={40 * TOKENS} tokens", "schedule.floor=0", *MASKED)
    found = [row for row in rows(train(job).directory) if row["kind"] == "train"]
    assert job.total_steps() == len(found) == 40
    assert [row["tokens"] for row in found] == [TOKENS * (at + 1) for at in range(40)]
    # The rate reaches 0 where the run ends, not before.
    assert all(row["lr"] > 0 for row in found)


def test_the_plain_cross_entropy_is_over_the_targets_that_count(tmp_path: Path) -> None:
    job = small_job(tmp_path, "duration=1 steps", *MASKED)
    (row,) = (row for row in rows(train(job).directory) if row["kind"] == "train")
    assert row["loss"] == row["cross_entropy"]
