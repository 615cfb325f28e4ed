"""Checks of `checkpoint.frozen`, which few jobs set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem
from setpoint.model.config import Transformer

if TYPE_CHECKING:
    from setpoint.train.config import Job


def frozen_problems(job: Job) -> Iterator[Problem]:
    """Find checkpoints that would leave out what nothing has, or nothing."""
    if not job.optimizer.frozen and job.adapter is None:
        yield Problem(
            "checkpoint.frozen",
            "false has no effect: no parameter is frozen for the whole run",
            valid=("true",),
            also=("optimizer.frozen", "adapter"),
        )
    if (
        job.adapter is not None
        and job.adapter.quantize is not None
        and not isinstance(job.model, Transformer)
    ):
        tag = type(job.model).__setpoint__.tag
        yield Problem(
            "checkpoint.frozen",
            f"false quantizes frozen parameters again, from tensors whose names are known, and a "
            f"model of type = {tag} has names of its own",
            valid=("true",),
            also=("adapter.quantize", "model"),
            hint="Quantized weights take a quarter of the bytes of bf16, or half of them.",
        )
    if job.model.pretrained is None:
        yield Problem(
            "checkpoint.frozen",
            "false leaves out frozen parameters, which are taken again from model.pretrained, and "
            "that is null",
            valid=("true",),
            also=("model.pretrained",),
        )
