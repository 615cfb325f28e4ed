"""How much memory a training takes, part by part, before anything is built."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from setpoint.model.config import Transformer
from setpoint.model.size import unknown_size
from setpoint.optim.config import (
    SGD,
    Adafactor,
    AdamW,
    AnyPrecisionAdamW,
    ImportedOptimizer,
    Lion,
    Muon,
    ScheduleFreeAdamW,
)
from setpoint.shapes.parameter import Parameter
from setpoint.train.build.activations import BYTES, Activations, activations
from setpoint.train.build.parameters import saved_by_quantizing, trained_and_frozen
from setpoint.train.config import Job

STEP = 4
"""Bytes of the count of steps that some optimizers keep for each parameter, in fp32."""


class MemoryPlan(NamedTuple):
    """Bytes by what they are for, on a rank that holds the whole model.

    Arguments:
        masters: second copies of them, which the optimizer updates.
        gradients: of all that is trained, as the optimizer gets them.
        optimizer_state: what the optimizer keeps; None where only itself knows.
        averaged: the copy of the point that is trained, while an optimizer that averages has its
            weights evaluated and saved.
        activations: what a micro-batch keeps for its backward pass; None where only the model
            knows.
    """

    parameters: int
    masters: int
    gradients: int
    optimizer_state: int | None
    on_host: int
    averaged: int
    activations: Activations | None

    @property
    def total(self) -> int:
        """The most that tensors take on the device at once, of what is known here.

        In the backward pass: all gradients, and all activations that are still kept, are not there
        at the same time, so it is an upper bound. Where averaged weights are evaluated there are no
        gradients, and these take no less than that copy.
        """
        fixed = self.parameters + self.masters + self.gradients
        state = (self.optimizer_state or 0) - self.on_host
        return fixed + state + sum(self.activations or ())

    def to_json(self) -> dict[str, object]:
        """The plan for machines."""
        found = self._asdict()
        if self.activations is not None:
            found["activations"] = self.activations._asdict()
        return {**found, "total": self.total}


def planned_memory(job: Job, vocab_size: int) -> MemoryPlan:
    """Estimate what a job takes. Activations are those of `setpoint.train.build.activations`.

    Returns:
        the estimate; all but the activations is exact.

    Raises:
        SetpointError: the model cannot be built, where only itself knows its parameters.
    """
    parameters, frozen = trained_and_frozen(job, vocab_size)
    numbers = sum(prod(each.shape) for each in parameters)
    held = job.precision.master or job.precision.params
    stored = job.precision.reduce or job.precision.params
    state = optimizer_state(job, parameters)
    limit = job.memory.optimizer_offload
    model, kept = job.model, None
    if isinstance(model, Transformer) and not unknown_size(model):
        kept = activations(job, model, vocab_size)
    whole = (numbers + frozen) * BYTES[job.precision.params]
    return MemoryPlan(
        parameters=whole - saved_by_quantizing(job, vocab_size),
        masters=0 if job.precision.master is None else numbers * BYTES[held],
        gradients=numbers * max(BYTES[held], BYTES[stored]),
        optimizer_state=state,
        on_host=0 if limit is None or state is None else max(0, state - int(limit.limit)),
        averaged=numbers * BYTES[held] if isinstance(job.optimizer, ScheduleFreeAdamW) else 0,
        activations=kept,
    )


def optimizer_state(job: Job, parameters: Iterable[Parameter]) -> int | None:
    """Count the optimizer state.

    Returns:
        bytes, counts of steps included; None for an imported optimizer.
    """
    optimizer = job.optimizer
    held = job.precision.master or job.precision.params
    size = BYTES[job.precision.optimizer_state or held]
    total = 0
    for each in parameters:
        numbers = prod(each.shape)
        match optimizer:
            case ImportedOptimizer():
                return None
            case AdamW():
                total += (3 if optimizer.amsgrad else 2) * numbers * BYTES[held] + STEP
            case AnyPrecisionAdamW():
                total += 2 * numbers * size + STEP
            case ScheduleFreeAdamW():
                total += 2 * numbers * BYTES[held]
            case SGD():
                total += numbers * BYTES[held] * bool(optimizer.momentum)
            case Lion():
                total += numbers * size
            case Muon():
                is_muon = optimizer.treatment(each)["algorithm"] == "muon"
                total += numbers * size if is_muon else 2 * numbers * size + STEP
            case Adafactor():
                total += _factored(each.shape) * BYTES[held] + STEP
            case _:
                return None
    return total


def _factored(shape: tuple[int, ...]) -> int:
    """Means of rows and of columns, or of each number of what is no matrix."""
    if len(shape) < 2:
        return prod(shape)
    return prod(shape[:-1]) + prod(shape[:-2]) * shape[-1]
