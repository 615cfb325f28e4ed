"""From a resolved job to the objects that train it, in the order in which they need each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from setpoint.data.corpus import Corpus
from setpoint.data.loader import WindowLoader
from setpoint.data.tokenizer import Tokenizer
from setpoint.data.windows import require_one_window
from setpoint.model.build import build_model
from setpoint.model.initialize import Initializable, initialize
from setpoint.model.pretrained.start import start_from
from setpoint.optim.multipliers import OwnRates, apply_multipliers
from setpoint.parallel.determinism import set_determinism
from setpoint.parallel.device import choose_device
from setpoint.train.config import Job
from setpoint.train.objective import Objective, require_tokens


@dataclass(slots=True)
class Parts:
    """The objects of one training job.

    Arguments:
        device: where the model lies.
        tokenizer: turns text into tokens.
        train, held_out: the two sides of the data.
        loader: draws the micro-batches of the training side.
        model: maps (B, S) tokens to (B, S, V) logits.
        objective: the model and its loss as one; maps tokens and targets to sums over tokens.
        optimizer: of the model's parameters.
        schedule: from the number of an update to the factor on the peak learning rate.
        scaler: scales the loss for fp16; does nothing otherwise.
        pretrained: what the record says of the weights that the model started from; None where it
            started from random ones, or did not start now.
    """

    device: torch.device
    tokenizer: Tokenizer
    train: Corpus
    held_out: Corpus
    loader: WindowLoader
    model: nn.Module
    objective: Objective
    optimizer: torch.optim.Optimizer
    schedule: Callable[[int], float]
    scaler: torch.amp.GradScaler
    pretrained: dict[str, Any] | None = None


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


def build_parts(job: Job, fresh: bool = True) -> Parts:
    """Build everything that a job needs; nothing is written.

    Arguments:
        job: the resolved configuration.
        fresh: whether the run begins now, so that `model.pretrained` counts; a run that goes on
            has weights of its own.

    Returns:
        the parts, at the start of the run.

    Raises:
        SetpointError: if the data is empty or cannot be read, the device is not there, or the loss
            does not fit the tokenizer or the model.
    """
    device = choose_device(job.parallel)
    set_determinism(job.deterministic)
    seed_everything(job)
    assert job.seed is not None
    tokenizer = job.tokenizer.build()
    require_tokens(job.loss, tokenizer.vocab_size)
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
    model = build_model(job.model, tokenizer.vocab_size)
    if isinstance(model, Initializable):
        initialize(model, job.seed)
    # A model of the user's own that names no rules has initialized itself, from the seed above.
    pretrained = None
    if fresh and job.model.pretrained is not None:
        pretrained = start_from(job.model, model)
    model.to(device)
    optimizer = job.optimizer.build(parameters=model.named_parameters())
    if isinstance(model, OwnRates):
        multipliers = model.learning_rate_multipliers()
        apply_multipliers(optimizer, model.named_parameters(), multipliers)
    scaler = torch.amp.GradScaler(device.type, enabled=job.precision.compute == "fp16")
    return Parts(
        device=device,
        tokenizer=tokenizer,
        train=train,
        held_out=held_out,
        loader=loader,
        model=model,
        objective=Objective(model, job.loss.build()),
        optimizer=optimizer,
        schedule=job.schedule.build(),
        scaler=scaler,
        pretrained=pretrained,
    )
