"""Runs with components that are imported by their path."""

from __future__ import annotations

from pathlib import Path

import torch
import torch._dynamo
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.position import Position
from setpoint.train.run import train

from ..small import loop_of, rows, small_job

FLAGS = (
    "optimizer.type=import",
    "optimizer.target=torch.optim.Adagrad",
    "optimizer.lr_decay=0.1",
    "optimizer.lr=0.05",
    "optimizer.clip_norm=0.5",
    "model.dropout=0",
    "duration=6 steps",
)


def plain_loop(job: Job) -> list[torch.Tensor]:
    """The same run in plain torch: two micro-batches, clipping, a schedule, Adagrad."""
    components = build_components(job)
    optimizer = torch.optim.Adagrad(components.model.parameters(), lr=0.05, lr_decay=0.1)
    for step in range(6):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * components.schedule.factor(Position(step=step))
        batches = components.feed.take().batches
        tokens = sum(batch.target_tokens for batch in batches)
        optimizer.zero_grad()
        for batch in batches:
            logits = components.model(batch.inputs).flatten(0, 1)
            total = F.cross_entropy(logits, batch.targets.flatten(), reduction="sum")
            (total / tokens).backward()
        clip_grad_norm_(components.model.parameters(), 0.5)
        optimizer.step()
    return [parameter.detach() for parameter in components.model.parameters()]


def test_adagrad_by_its_path_learns_what_a_plain_loop_learns(tmp_path: Path) -> None:
    job = small_job(tmp_path, *FLAGS)
    expected = plain_loop(job)
    components = build_components(job)
    assert isinstance(components.optimizer, torch.optim.Adagrad)
    loop_of(job, components=components).run()
    for ours, theirs in zip(components.model.parameters(), expected, strict=True):
        torch.testing.assert_close(ours.detach(), theirs, rtol=1e-6, atol=1e-7)


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
