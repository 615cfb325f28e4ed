"""Observations of a job that several tables of effects share."""

from typing import Any

import torch

from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.run import train
from setpoint.train.verdict import StepResult

from ..small import Steps, loop_of, rows

Row = tuple[Any, ...]


def weights(job: Job) -> dict[str, bytes]:
    """The initial parameters."""
    components = build_components(job)
    return {n: p.detach().numpy().tobytes() for n, p in components.model.named_parameters()}


def logits(job: Job) -> bytes:
    """Logits of the initial model on a fixed text, with weights scaled up to show small effects."""
    model = build_components(job).model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5.0)
        return model(torch.arange(64, 80)[None]).numpy().tobytes()


def learned(job: Job) -> list[bytes]:
    """The parameters after two updates."""
    components = build_components(job)
    loop = loop_of(job, components=components)
    for _ in range(2):
        loop.step()
    # NumPy has no bf16.
    return [p.detach().float().numpy().tobytes() for p in components.model.parameters()]


def corpora(job: Job) -> tuple[str, str]:
    """Digests of the training and the held-out data."""
    components = build_components(job)
    assert components.held_out is not None
    return components.train_data.identity.digest, components.held_out.identity.digest


def logged(job: Job) -> list[dict[str, Any]]:
    """The rows of metrics, if there are any."""
    run = train(job).directory
    return rows(run) if (run / "metrics.jsonl").exists() else []


def updates(job: Job) -> list[StepResult]:
    """The results of all updates."""
    callback = Steps()
    loop_of(job, callback).run()
    return callback.seen


def rates(job: Job) -> list[float]:
    """The learning rates."""
    return [result.lr for result in updates(job)]
