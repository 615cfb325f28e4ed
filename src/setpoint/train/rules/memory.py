"""Cross-section checks of what a job needs against the memory of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem
from setpoint.data.tokenizers.config import BYTES_VOCABULARY
from setpoint.memory.config import Operators
from setpoint.memory.machine import machine_memory
from setpoint.model.config import Transformer
from setpoint.model.size import unknown_size
from setpoint.train.build.memory_plan import planned_memory

if TYPE_CHECKING:
    from setpoint.train.config import Job

SURE = 0.9
"""Share of the estimate of activations that a micro-batch takes in any case; the formula is within
a tenth of what is measured."""


def memory_problems(job: Job) -> Iterator[Problem]:
    """Find a job on the CPU that needs more memory than there is, so that it would be killed."""
    model, batch = job.model, job.batch
    if not isinstance(model, Transformer) or unknown_size(model):
        return
    if job.parallel.device == "auto":
        from torch import cuda

        if cuda.is_available():
            return
    plan = planned_memory(job, model.vocab_size or BYTES_VOCABULARY)
    here, state = machine_memory(), plan.optimizer_state or 0
    kept = plan.parameters + plan.masters + state
    weights = kept + plan.gradients
    if weights > here:
        yield Problem(
            "model",
            f"its parameters, gradients and optimizer state take at least {_gib(weights)} whatever "
            f"the batch is, and this machine has {_gib(here)}",
            also=("optimizer", "precision.params"),
            hint="What helps: a smaller model, precision.params = bf16, or an optimizer that keeps "
            "less state.",
        )
        return
    held = plan.activations
    if held is None or job.compile is not None:  # a compiler does without some of them
        return
    # The state is there from the end of the first step on.
    kept -= state * (job.total_steps() == 1)
    needed = int(SURE * (held.kept + held.logits))
    if kept + needed > here:
        yield Problem(
            "batch.micro_size",
            f"activations and logits of {batch.micro_size} sequences of {batch.sequence_length} "
            f"tokens take at least {_gib(needed)} beside {_gib(kept)} of weights and optimizer "
            f"state, and this machine has {_gib(here)}",
            also=("batch.sequence_length", "model"),
            hint=f"What helps: {'; '.join(levers(job))}.",
        )


def levers(job: Job) -> list[str]:
    """List what would make a job take less memory, the cheapest first.

    Returns:
        what to do; not what is done already.
    """
    memory, optimizer, found = job.memory, job.optimizer, list[str]()
    if job.batch.micro_size > 1:
        found.append("a smaller batch.micro_size (batch.accumulation makes up for it)")
    if not type(job.loss).from_hidden and isinstance(job.model, Transformer):
        found.append("loss.type = chunked_cross_entropy, which never holds all logits")
    checkpointing = memory.activation_checkpointing
    if checkpointing is None:
        found.append("memory.activation_checkpointing.type = full, which keeps less of each layer")
    if job.parallel.device != "cpu":
        if memory.activation_offload is None and not isinstance(checkpointing, Operators):
            found.append("memory.activation_offload, which keeps activations on the host")
        if memory.optimizer_offload is None and optimizer.by_parameter and optimizer.keeps_state:
            found.append("memory.optimizer_offload, which keeps the optimizer's state there")
    return [*found, "a shorter batch.sequence_length", "a smaller model"]


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
