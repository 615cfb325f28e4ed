"""Rules of `[precision]`, `[optimizer]` and `deterministic`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem, SetpointError, check, dead
from setpoint.model.config import HuggingFaceModel, Transformer
from setpoint.parallel.config import CUBLAS_VARIABLE, CUBLAS_WORKSPACES
from setpoint.shapes.parameter import is_pattern
from setpoint.train.rules.model import device_needs, known_vocabulary, within

if TYPE_CHECKING:
    from setpoint.train.config import Job

LIKELY_VOCABULARY = 128 * 1024
"""Stands for the size of a vocabulary that is not known here; the output has none in float8."""


@dead("optimizer.rounding")
def idle_rounding(job: Job) -> str | None:
    """Rounding where the optimizer updates nothing in bf16."""
    state = job.precision.optimizer_state or job.precision.updated
    if "bf16" in (state, job.precision.updated):
        return None
    return "the weights that it updates and its state are in fp32, and nothing is rounded"


@dead("precision.reduce")
def idle_reduction(job: Job) -> str | None:
    """A dtype of sums of gradients where none are added up."""
    widened = (job.precision.params, job.precision.reduce) == ("bf16", "fp32")
    if widened and job.batch.accumulation == job.parallel.data_ranks == 1:
        return "gradients of one micro-batch on one rank are not added up"
    return None


@dead("precision.gather")
def idle_gather(job: Job) -> str | None:
    """A dtype of gathered weights where no fp32 weights are gathered."""
    if job.precision.gather == job.precision.params:
        return None  # as weights are anyway
    if not job.parallel.uses_fsdp:
        return "no weights are sharded (shard = 1)"
    return "weights in bf16 are gathered in bf16" if job.precision.params == "bf16" else None


@dead("parallel.sharding.accumulation")
def idle_accumulation(job: Job) -> str | None:
    """Accumulation of sharded gradients where a step has one micro-batch."""
    counts = job.parallel.accumulates_whole and job.batch.accumulation == 1
    return "a step has one micro-batch" if counts else None


@dead("precision.float8.gather", holds=(False,))
def idle_float8_gather(job: Job) -> str | None:
    """Weights to gather in float8 where none are gathered, or not in float8."""
    if not job.parallel.uses_fsdp:
        return "no weights are sharded (parallel.shard = 1)"
    reshard = job.parallel.reshard
    if reshard is not None and not isinstance(reshard, bool):
        return f"parallel.reshard = {reshard} keeps weights in bf16 or fp32 on {reshard} ranks"
    return None


@check(when=lambda job: job.precision.float8 is not None)
def float8_problems(job: Job) -> Iterator[Problem]:
    """Linear layers that cannot be computed in float8."""
    from setpoint.precision.config import converted, layer_problems

    float8, model, path = job.precision.float8, job.model, "precision.float8"
    assert float8 is not None
    layers = linear_layers(model) if isinstance(model, Transformer) else {}
    if not layers:
        return  # looked at when the model is there
    assert isinstance(model, Transformer)
    experts = packed_experts(model)
    unpacked = model.moe is not None and not model.moe.packed
    problem = layer_problems(float8, layers, experts)
    yield from within(path, (p for p in problem if p.path != "experts" or not unpacked))
    if "output" in converted(float8, layers):
        yield Problem(
            f"{path}.skip",
            "must match output: losses multiply with its matrix themselves, in bf16",
            hint="Add '^output$'.",
        )


def packed_experts(model: Transformer) -> dict[str, tuple[int, int]]:
    """List the packed experts of a transformer without building it: (width, dim) by name."""
    from setpoint.model.parameters import parameters_of

    return {
        parameter.name.removesuffix(".down"): (parameter.shape[1], parameter.shape[2])
        for parameter in parameters_of(model, LIKELY_VOCABULARY)
        if len(parameter.shape) == 3 and parameter.name.endswith(".down")
    }


@check(needs="torch", when=lambda job: job.precision.float8 is not None)
def float8_device_problems(job: Job) -> Iterator[Problem]:
    """A device that does not compute in float8."""
    import torch

    from setpoint.precision.float8 import why_not

    assert job.precision.float8 is not None
    if job.parallel.device != "cuda" or not torch.cuda.is_available():
        return
    if reason := why_not(job.precision.float8, torch.device("cuda")):
        yield Problem("precision.float8", reason, valid=("null",), also=("parallel.device",))


def linear_layers(model: Transformer) -> dict[str, tuple[int, int]]:
    """List the linear layers of a transformer without building it.

    Returns:
        (out, in) features by qualified name; none where only an imported norm itself knows what
        parameters it has.
    """
    from setpoint.model.parameters import parameters_of

    if not model.parameters_known:
        return {}
    return {
        parameter.name.removesuffix(".weight"): (parameter.shape[0], parameter.shape[1])
        for parameter in parameters_of(model, LIKELY_VOCABULARY)
        if parameter.kind in ("matrix", "output") and len(parameter.shape) == 2
    }


@check(needs=device_needs, when=lambda job: job.deterministic and job.parallel.device != "cpu")
def workspace_problems(job: Job) -> Iterator[Problem]:
    """An environment in which matrix products on a GPU are not deterministic."""
    if job.parallel.device == "auto":
        from torch import cuda

        if not cuda.is_available():
            return
    value = os.environ.get(CUBLAS_VARIABLE)
    if value not in (None, *CUBLAS_WORKSPACES):
        yield Problem(
            "deterministic",
            f"the environment has {CUBLAS_VARIABLE} = {value}, with which cuBLAS gives other sums "
            f"in each run",
            hint=f"Unset it, or set it to {' or '.join(CUBLAS_WORKSPACES)}.",
        )


@check(when=lambda job: job.optimizer.has_patterns and job.model.parameters_known)
def pattern_problems(job: Job) -> Iterator[Problem]:
    """Patterns of the optimizer that match no parameter of a transformer."""
    if _can_be_searched(job):
        yield from _unmatched(job, vocabulary=1)


@check(
    needs=("import", "torch"),
    when=lambda job: job.optimizer.has_patterns and not job.model.parameters_known,
)
def built_pattern_problems(job: Job) -> Iterator[Problem]:
    """Patterns of the optimizer that match no parameter of the model, once built."""
    try:
        yield from _unmatched(job, known_vocabulary(job.tokenizer) or 1)
    except SetpointError as error:
        if not isinstance(job.model, HuggingFaceModel):  # of which a rule of its own says it
            yield Problem("model", str(error))


def _unmatched(job: Job, vocabulary: int) -> Iterator[Problem]:
    from setpoint.optim.frozen import frozen_problems, is_frozen
    from setpoint.optim.grouping import unmatched
    from setpoint.train.build.job_parameters import trainable_parameters

    # Which names there are does not depend on the vocabulary.
    config, all_of_them = job.optimizer, trainable_parameters(job, vocabulary)[0]
    trained = [parameter for parameter in all_of_them if not is_frozen(config, parameter.name)]
    yield from within("optimizer", frozen_problems(config, all_of_them))
    yield from within("optimizer", unmatched(config, trained) if trained else ())


def _can_be_searched(job: Job) -> bool:
    """True if all patterns are regular expressions, which the sections themselves check."""
    config = job.optimizer
    if job.adapter is not None and not job.adapter.can_be_searched:
        return False
    patterns = [*config.frozen, *(group.pattern for group in config.groups)]
    patterns += [span.pattern for span in config.frozen_spans]
    for field in config.patterns:
        patterns.extend(getattr(config, field))
    return all(is_pattern(pattern) for pattern in patterns)
