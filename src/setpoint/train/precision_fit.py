"""What the number formats need of the other sections, as far as the configuration tells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem
from setpoint.model.config import Transformer
from setpoint.optim.config import ImportedOptimizer
from setpoint.precision.fp16_fit import ON_A_GPU, fp16_problems

if TYPE_CHECKING:
    from setpoint.train.config import Job


def precision_problems(job: Job) -> Iterator[Problem]:
    """Look for what the number formats cannot do with this job."""
    yield from fp16_problems("precision.compute", job.precision.compute, job.parallel.device)
    yield from _state_problems(job)
    if job.precision.float8 is not None:
        yield from _float8_problems(job)


def updated_format(job: Job) -> str:
    """The format of the weights that the optimizer updates.

    Returns:
        that of the masters, or else of the model's own weights.
    """
    return job.precision.master or job.precision.params


def idle_rounding(job: Job) -> str | None:
    """Why it does not matter how an optimizer rounds.

    Returns:
        the reason; None if it does.
    """
    state = job.precision.optimizer_state or updated_format(job)
    if "bf16" in (state, updated_format(job)):
        return None
    return "the weights that it updates and its state are in fp32, and nothing is rounded"


def idle_reduction(job: Job) -> str | None:
    """Why it does not matter in which format gradients are added up.

    Returns:
        the reason; None if it does.
    """
    if job.precision.reduce == job.precision.params:
        return f"null is the same: the format of precision.params, {job.precision.params}"
    widened = (job.precision.params, job.precision.reduce) == ("bf16", "fp32")
    if widened and job.batch.accumulation == job.parallel.world_size == 1:
        return "gradients of one micro-batch on one rank are not added up"
    return None


def idle_state(job: Job) -> str | None:
    """Why it does not matter that the format of the optimizer's state is given.

    Returns:
        the reason; None if it does, or if the optimizer has no such state at all.
    """
    held = updated_format(job)
    if job.precision.optimizer_state != held or _state_in_doubt(job):
        return None
    return f"null is the same: the format of the weights that the optimizer updates, {held}"


def _state_in_doubt(job: Job) -> bool:
    """Whether the optimizer keeps nothing, or what it likes."""
    return isinstance(job.optimizer, ImportedOptimizer) or not job.optimizer.keeps_state


def _state_problems(job: Job) -> Iterator[Problem]:
    wanted, optimizer, held = job.precision.optimizer_state, job.optimizer, updated_format(job)
    if wanted is None:
        return
    tag, path = type(optimizer).__setpoint__.tag, "precision.optimizer_state"
    if isinstance(optimizer, ImportedOptimizer):
        yield Problem(
            path,
            f"cannot be asked of {optimizer.target}, which keeps its state in what it likes",
            valid=("null",),
            also=("optimizer",),
        )
    elif _state_in_doubt(job):
        reason = f"has no effect: {tag} keeps nothing from update to update"
        yield Problem(path, reason, valid=("null",), also=("optimizer",))
    elif not optimizer.state_formats and wanted != held:
        yield Problem(
            path,
            f"{tag} keeps its state in the format of the weights that it updates, {held}",
            valid=("null",),
            also=("optimizer", "precision.params", "precision.master"),
            hint="Another format is for anyprecision_adamw, lion and muon.",
        )


def _float8_problems(job: Job) -> Iterator[Problem]:
    from setpoint.precision.float8_fit import MULTIPLE, converted, layer_problems

    float8, model, path = job.precision.float8, job.model, "precision.float8"
    assert float8 is not None
    if job.parallel.device != "cuda":
        yield Problem(
            path,
            "needs a GPU of Ada's or Hopper's age or newer",
            valid=("null",),
            also=("parallel.device",),
            hint=ON_A_GPU,
        )
    tokens = job.batch.micro_size * job.batch.sequence_length
    if tokens % MULTIPLE and float8.recipe != "rowwise_with_gw_hp":
        yield Problem(
            path,
            f"multiplies matrices whose sides are a multiple of {MULTIPLE}, and a micro-batch of "
            f"{job.batch.micro_size} x {job.batch.sequence_length} has {tokens} tokens",
            also=("batch.micro_size", "batch.sequence_length"),
        )
    layers = linear_layers(model) if isinstance(model, Transformer) else {}
    if not layers:
        return  # looked at when the model is there
    for problem in layer_problems(float8, layers):
        below = f"{path}.{problem.path}" if problem.path else path
        yield Problem(below, problem.message, valid=problem.valid, hint=problem.hint)
    wanted = converted(float8, layers)
    if "output" in wanted:
        yield Problem(
            f"{path}.skip",
            "must match output: losses multiply with its matrix themselves, in bf16",
            hint="Add '^output$'.",
        )
    if any(".experts." in name for name in wanted):
        yield Problem(
            f"{path}.skip",
            f"must match the experts: each has its own number of rows, which float8 wants to be a "
            f"multiple of {MULTIPLE}",
            also=("model.moe.packed",),
            hint="Add 'experts', or pack them, which leaves them in bf16.",
        )


def float8_device_problems(job: Job) -> Iterator[Problem]:
    """Look whether the device that is here computes in float8.

    Returns:
        a problem, or none; none either where the device is missing, which is one of its own.
    """
    import torch

    from setpoint.precision.float8 import why_not

    if job.parallel.device != "cuda" or not torch.cuda.is_available():
        return
    if reason := why_not(torch.device("cuda")):
        yield Problem("precision.float8", reason, valid=("null",), also=("parallel.device",))


def linear_layers(model: Transformer) -> dict[str, tuple[int, int]]:
    """List the linear layers of a transformer without building it.

    Returns:
        (out, in) features by qualified name; none where only an imported norm itself knows what
        parameters it has.
    """
    from setpoint.model.parameters import parameters_of
    from setpoint.model.size import unknown_size
    from setpoint.precision.float8_fit import MULTIPLE

    if unknown_size(model):
        return {}
    # The output, which is to be left out, has the size of a vocabulary that is not known here.
    return {
        each.name.removesuffix(".weight"): (each.shape[0], each.shape[1])
        for each in parameters_of(model, MULTIPLE)
        if each.kind in ("matrix", "output") and len(each.shape) == 2
    }
