"""Runs with components that are imported by their path."""

from pathlib import Path

import torch
import torch._dynamo

from setpoint.train.run import train

from ..small import rows, small_job

FLAGS = (
    "optimizer.type=import", "optimizer.target=torch.optim.Adagrad", "optimizer.lr_decay=0.1",
    "optimizer.lr=0.05", "optimizer.clip_norm=0.5", "model.dropout=0", "duration=6 steps",
)  # fmt: skip


def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path: Path) -> None:
    flags = (*FLAGS, "schedule=constant", "loss.type=import")
    flags = (*flags, "loss.target=torch.nn.CrossEntropyLoss", "loss.label_smoothing=0.1")
    whole = train(small_job(tmp_path / "a", *flags, "duration=8 steps"))
    train(small_job(tmp_path / "b", *flags, "duration=4 steps"))
    resumed = train(small_job(tmp_path / "b", *flags, "duration=8 steps"))
    assert resumed.started.step == 4
    for ours, theirs in zip(
        resumed.components.model.parameters(), whole.components.model.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)
    losses = [row["loss"] for row in rows(whole.directory) if "loss" in row]
    assert losses == [row["loss"] for row in rows(resumed.directory) if "loss" in row]
