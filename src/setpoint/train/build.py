"""From a resolved job to the objects that train it, in the order in which they need each other."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from setpoint.data.corpus import Corpus
from setpoint.data.loader import WindowLoader
from setpoint.data.tokenizer import Tokenizer
from setpoint.data.windows import require_one_window
from setpoint.model.initialize import initialize
from setpoint.parallel.device import choose_device
from setpoint.train.config import Job


@dataclass(slots=True)
class Parts:
    """The objects of one training job.

    Arguments:
        device: where the model lies.
        tokenizer: turns text into tokens.
        train, held_out: the two sides of the data.
        loader: draws the micro-batches of the training side.
        model: maps (B, S) tokens to (B, S, V) logits.
        loss: maps logits and targets to sums over tokens.
        optimizer: of the model's parameters.
        schedule: from the number of an update to the factor on the peak learning rate.
        scaler: scales the loss for fp16; does nothing otherwise.
    """

    device: torch.device
    tokenizer: Tokenizer
    train: Corpus
    held_out: Corpus
    loader: WindowLoader
    model: nn.Module
    loss: Callable[..., Any]
    optimizer: torch.optim.Optimizer
    schedule: Callable[[int], float]
    scaler: torch.amp.GradScaler


def seed_everything(job: Job) -> None:
    """Set the generators that components draw from without naming one.

    Arguments:
        job: the resolved configuration, whose seed is not null.
    """
    import random

    import numpy

    assert job.seed is not None
    random.seed(job.seed)
    numpy.random.seed(job.seed % 2**32)
    torch.manual_seed(job.seed)


def set_determinism(required: bool) -> None:
    """Make PyTorch use deterministic operations only, and fail where it has none; or not.

    Arguments:
        required: whether to; False takes back what an earlier job of this process asked for.
    """
    if required:
        # cuBLAS reads this when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(required)


def build_parts(job: Job) -> Parts:
    """Build everything that a job needs; nothing is written.

    Arguments:
        job: the resolved configuration.

    Returns:
        the parts, at the start of the run.

    Raises:
        SetpointError: if the data is empty or cannot be read, or the device is not there.
    """
    device = choose_device(job.parallel)
    set_determinism(job.deterministic)
    seed_everything(job)
    assert job.seed is not None
    tokenizer = job.tokenizer.build()
    train, held_out = job.data.build(tokenizer=tokenizer)
    if job.evaluation is not None and job.evaluation.every.unit != "never":
        # Else it would come out at the first evaluation, when the training is paid for.
        require_one_window(held_out, job.batch.sequence_length)
    loader = WindowLoader(
        train,
        sequence_length=job.batch.sequence_length,
        micro_size=job.batch.micro_size,
        seed=job.seed,
    )
    model: nn.Module = job.model.build(vocab_size=tokenizer.vocab_size)
    if hasattr(model, "initializers"):
        initialize(model, job.seed)
    # A model of the user's own that names no rules has initialized itself, from the seed above.
    model.to(device)
    optimizer = job.optimizer.build(parameters=model.named_parameters())
    scaler = torch.amp.GradScaler(device.type, enabled=job.precision.compute == "fp16")
    return Parts(
        device=device,
        tokenizer=tokenizer,
        train=train,
        held_out=held_out,
        loader=loader,
        model=model,
        loss=job.loss.build(),
        optimizer=optimizer,
        schedule=job.schedule.build(),
        scaler=scaler,
    )
