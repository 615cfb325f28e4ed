"""Cross-section checks of `[precision]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem
from setpoint.model.config import Transformer
from setpoint.model.foreign import HuggingFaceModel
from setpoint.model.parameters import parameters_of
from setpoint.model.size import unknown_size
from setpoint.precision.checks import converted, layer_problems

if TYPE_CHECKING:
    from setpoint.model.moe.config import MoE
    from setpoint.train.config import Job

LIKELY_VOCABULARY = 128 * 1024
"""Stands for the size of a vocabulary that is not known here; the output has none in float8."""


def idle_rounding(job: Job) -> str | None:
    """Say why optimizer.rounding has no effect; None if it has one."""
    state = job.precision.optimizer_state or job.precision.updated
    if "bf16" in (state, job.precision.updated):
        return None
    return "the weights that it updates and its state are in fp32, and nothing is rounded"


def idle_reduction(job: Job) -> str | None:
    """Say why precision.reduce has no effect; None if it has one."""
    widened = (job.precision.params, job.precision.reduce) == ("bf16", "fp32")
    if widened and job.batch.accumulation == job.parallel.data_ranks == 1:
        return "gradients of one micro-batch on one rank are not added up"
    return None


def idle_gather(job: Job) -> str | None:
    """Say why precision.gather has no effect; None if it has one."""
    precision = job.precision
    if not job.parallel.uses_fsdp:
        return "no weights are sharded (shard = 1)"
    if precision.params == "bf16" and precision.gather == "fp32":
        return "weights in bf16 are gathered in bf16"
    return None


def idle_accumulation(job: Job) -> str | None:
    """Say why parallel.sharding.accumulation has no effect; None if it has one."""
    return "a step has one micro-batch" if job.batch.accumulation == 1 else None


def idle_float8_gather(job: Job) -> str | None:
    """Say why precision.float8.gather has no effect; None if it has one."""
    if not job.parallel.uses_fsdp:
        return "no weights are sharded (parallel.shard = 1)"
    reshard = job.parallel.reshard
    if reshard is not None and not isinstance(reshard, bool):
        return f"parallel.reshard = {reshard} keeps weights in bf16 or fp32 on {reshard} ranks"
    return None


def float8_problems(job: Job) -> Iterator[Problem]:
    """Find sizes and layers that products in float8 cannot have."""
    float8, model, path = job.precision.float8, job.model, "precision.float8"
    assert float8 is not None
    if float8.experts and isinstance(model, HuggingFaceModel):
        yield Problem(
            f"{path}.experts",
            "multiplies packed experts of model.moe, and transformers computes those of its models",
            valid=("false",),
            also=("model.type",),
        )
    layers = linear_layers(model) if isinstance(model, Transformer) else {}
    if not layers:
        return  # looked at when the model is there
    assert isinstance(model, Transformer)
    if float8.experts and model.moe is not None:
        yield from _expert_problems(model.moe)
    experts = packed_experts(model)
    for problem in layer_problems(float8, layers, experts):
        if problem.path == "experts" and model.moe is not None and not model.moe.packed:
            continue
        below = f"{path}.{problem.path}" if problem.path else path
        yield Problem(below, problem.message, valid=problem.valid, hint=problem.hint)
    if "output" in converted(float8, layers):
        yield Problem(
            f"{path}.skip",
            "must match output: losses multiply with its matrix themselves, in bf16",
            hint="Add '^output$'.",
        )


def _expert_problems(moe: MoE) -> Iterator[Problem]:
    path, also = "precision.float8.experts", ("model.moe.packed",)
    if not moe.packed:
        yield Problem(
            path,
            "has no effect: unpacked experts are linear layers, which compute in float8 anyway",
            valid=("false",),
            also=also,
        )
    elif moe.implementation == "loop":
        yield Problem(
            "model.moe.implementation",
            "computes expert by expert in bf16, and precision.float8.experts asks for grouped "
            "products",
            valid=("auto", "grouped"),
            also=(path,),
        )


def packed_experts(model: Transformer) -> dict[str, tuple[int, int]]:
    """List the packed experts of a transformer without building it: (width, dim) by name."""
    return {
        each.name.removesuffix(".down"): (each.shape[1], each.shape[2])
        for each in parameters_of(model, LIKELY_VOCABULARY)
        if len(each.shape) == 3 and each.name.endswith(".down")
    }


def float8_device_problems(job: Job) -> Iterator[Problem]:
    """Look whether the device that is here computes in float8.

    Returns:
        a problem, or none; none either where the device is missing, which is one of its own.
    """
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
    if unknown_size(model):
        return {}
    return {
        each.name.removesuffix(".weight"): (each.shape[0], each.shape[1])
        for each in parameters_of(model, LIKELY_VOCABULARY)
        if each.kind in ("matrix", "output") and len(each.shape) == 2
    }
