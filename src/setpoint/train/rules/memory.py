"""What would make a job take less memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from setpoint.memory.config import Operators
from setpoint.model.config import Transformer

if TYPE_CHECKING:
    from setpoint.train.config import Job


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
