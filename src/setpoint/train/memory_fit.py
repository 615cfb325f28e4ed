"""What the section `memory` needs of the others, as far as the configuration tells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem
from setpoint.memory.config import SAVE, Full, Operators, Parts
from setpoint.model.config import Transformer
from setpoint.optim.config import SGD

if TYPE_CHECKING:
    from setpoint.train.config import Job

CHECKPOINTING = "memory.activation_checkpointing"
COMPOSED = ("eager", "sdpa_math")
"""Backends whose attention is several operators: products of matrices, and what lies between."""


def memory_problems(job: Job) -> Iterator[Problem]:
    """Look for what saving memory cannot do with this job."""
    if job.parallel.device == "cpu":
        yield from _without_device(job, ("parallel.device",))
    yield from _checkpointing_problems(job)
    if job.memory.activation_offload is not None:
        yield from _activation_problems(job)
    if job.memory.optimizer_offload is not None:
        yield from _state_problems(job)


def device_problems(job: Job) -> Iterator[Problem]:
    """Look whether there is a device whose memory can be spared."""
    import torch

    if job.parallel.device == "auto" and not torch.cuda.is_available():
        yield from _without_device(job)


def _without_device(job: Job, also: tuple[str, ...] = ()) -> Iterator[Problem]:
    memory, there = job.memory, "the model is computed on the CPU"
    for name in ("activation_offload", "optimizer_offload"):
        if getattr(memory, name) is not None:
            why = f"has no effect: {there}, whose memory is the host's already"
            yield Problem(f"memory.{name}", why, valid=("null",), also=also)
    if memory.empty_cache.unit != "never":
        why = f"has no effect: {there}, whose memory PyTorch does not keep"
        yield Problem("memory.empty_cache", why, valid=("never",), also=also)


def _checkpointing_problems(job: Job) -> Iterator[Problem]:
    section, model = job.memory.activation_checkpointing, job.model
    if isinstance(section, Full | Parts) and section.reentrant and job.compile is not None:
        yield Problem(
            f"{CHECKPOINTING}.reentrant",
            "torch.compile cannot look into the older implementation, and would leave out what is "
            "computed again",
            valid=("false",),
            also=("compile.scope",),
        )
    if not isinstance(section, Operators):
        return
    if job.memory.activation_offload is not None:
        yield Problem(
            "memory.activation_offload",
            "cannot move what type = operators keeps, and its limit would not hold",
            valid=("null",),
            also=(CHECKPOINTING,),
            hint="Or compute whole layers or parts of them again: type = full or parts.",
        )
    if isinstance(model, Transformer) and section.save != SAVE and "attention" in section.save:
        backend = model.attention_backend
        if model.attention_dropout:
            why = "keeps no attention with dropout, which must draw its random numbers again"
            also = "model.attention_dropout"
        elif backend in COMPOSED:
            why = f"finds no attention: {backend} composes it of matrix products"
            also = "model.attention_backend"
        else:
            return
        yield Problem(f"{CHECKPOINTING}.save", why, valid=("[matmul]",), also=(also,))


def _activation_problems(job: Job) -> Iterator[Problem]:
    if job.compile is not None and job.compile.scope == "model":
        yield Problem(
            "memory.activation_offload",
            "works between compiled layers, and not within one compiled model",
            valid=("null",),
            also=("compile.scope",),
            hint="Or set compile.scope to block.",
        )


def _state_problems(job: Job) -> Iterator[Problem]:
    optimizer, path = job.optimizer, "memory.optimizer_offload"
    tag = type(optimizer).__setpoint__.tag
    if not optimizer.keeps_state:
        also = ("optimizer.momentum",) if isinstance(optimizer, SGD) else ("optimizer",)
        why = f"has no effect: {tag} keeps nothing from update to update"
        yield Problem(path, why, valid=("null",), also=also)
    elif not optimizer.by_parameter:
        yield Problem(
            path,
            f"updates some parameters at a time, and {tag} may look at all of them at once",
            valid=("null",),
            also=("optimizer",),
        )
