"""The parameters that a job will train, without their values, and what they take at least."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from setpoint.adapter.plan import AdapterReport, Described, describe, report_of
from setpoint.config import SetpointError
from setpoint.data.tokenizers.config import BYTES_VOCABULARY
from setpoint.model.config import Transformer
from setpoint.model.parameters import fused_parts_of, parameters_of
from setpoint.model.size import estimate_size
from setpoint.optim.frozen import is_frozen

if TYPE_CHECKING:
    from setpoint.shapes.parameter import Parameter
    from setpoint.train.config import Job

WIDTHS = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes of a number."""


def trained(job: Job, vocabulary: int) -> Sequence[Parameter]:
    """List the parameters that a job will train, as `trained_and_frozen` does."""
    return trained_and_frozen(job, vocabulary)[0]


def trained_and_frozen(job: Job, vocabulary: int) -> tuple[Sequence[Parameter], int]:
    """List the parameters that a job will train, and count the numbers in its others.

    Arguments:
        vocabulary: how many tokens there are.

    Raises:
        SetpointError: the model cannot be built.
    """
    parameters, others = described(job, vocabulary)
    held = [each for each in parameters if not is_frozen(job.optimizer, each.name)]
    whole = sum(prod(each.shape) for each in parameters)
    return held, others + whole - sum(prod(each.shape) for each in held)


def described(job: Job, vocabulary: int) -> tuple[Sequence[Parameter], int]:
    """List the parameters that a job would train without `optimizer.frozen`, with its adapter.

    Those of models that are not Setpoint's own are found by building the model on the meta device.

    Returns:
        the parameters, and how many numbers there are in those that the model itself or its
        adapter freezes.

    Raises:
        SetpointError: the model cannot be built.
    """
    model = job.model
    if isinstance(model, Transformer) and model.parameters_known:
        found = adapted(job, vocabulary)
        if found is not None:
            return found.trained, sum(prod(each.shape) for each in found.frozen)
        return list(parameters_of(model, vocabulary)), 0
    try:
        from setpoint.model.build import build_outline
        from setpoint.train.build.adapter import add_adapter
        from setpoint.train.build.parameter_groups import trained_parameters
    except ModuleNotFoundError as error:
        raise SetpointError(
            f"only the model itself knows its parameters, and building it needs the package "
            f"{error.name!r}: install PyTorch"
        ) from None
    built = build_outline(model, vocabulary)
    add_adapter(job, built)
    frozen = sum(each.numel() for each in built.parameters() if not each.requires_grad)
    return trained_parameters(built), frozen


def adapted(job: Job, vocabulary: int) -> Described | None:
    """Say what the adapter of a job does to a model whose parameters are listed.

    Returns:
        None without an adapter, and where only building the model tells.
    """
    model = job.model
    if job.adapter is None or not isinstance(model, Transformer) or not model.parameters_known:
        return None
    base = list(parameters_of(model, vocabulary))
    return describe(job.adapter, base, fused_parts_of(model))


def adapter_report(job: Job, found: Described) -> AdapterReport:
    """Count what is adapted, trained and frozen, `optimizer.frozen` included."""
    frozen = [each for each in found.trained if is_frozen(job.optimizer, each.name)]
    names = {each.name for each in frozen}
    trained = [each for each in found.trained if each.name not in names]
    rest = found._replace(trained=trained, frozen=[*found.frozen, *frozen])
    width = WIDTHS[job.precision.params]
    return report_of(rest, width, width)


def least_weights(job: Job) -> int | None:
    """Count what a job keeps for its weights from step to step, at least.

    Returns:
        bytes of parameters, gradients and, of optimizers that keep any, one number of state for
        each parameter; None where only the model knows its parameters.
    """
    model = job.model
    if not isinstance(model, Transformer) or not model.parameters_known:
        return None
    words, length = model.vocab_size or BYTES_VOCABULARY, job.batch.sequence_length
    count = estimate_size(model, vocab_size=words, sequence_length=length).parameters
    trained = count
    if job.optimizer.frozen or job.adapter is not None:
        held, frozen = trained_and_frozen(job, words)
        trained = sum(prod(each.shape) for each in held)
        count = trained + frozen
    width = WIDTHS[job.precision.params]
    held = width * (count + trained * (2 if job.optimizer.keeps_state else 1))
    return held - saved_by_quantizing(job, words)


def saved_by_quantizing(job: Job, vocabulary: int) -> int:
    """Count the bytes that a quantized base takes less than one in `precision.params`."""
    found = adapted(job, vocabulary)
    if found is None or not found.quantized:
        return 0
    width = WIDTHS[job.precision.params]
    numbers = {each.name: prod(each.shape) for each in found.frozen}
    return sum(width * numbers[name] - size for name, size in found.quantized.items())
