"""Explanations of errors in a step: out of memory, and operations unsupported by PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from setpoint.config import RunError
from setpoint.memory.host_memory import machine_memory
from setpoint.memory.usage import is_out_of_memory
from setpoint.parallel.determinism import explain as explain_determinism
from setpoint.train.build.job_parameters import training_bytes
from setpoint.train.config import Job
from setpoint.train.rules.run import memory_suggestions


@contextmanager
def explain_oom(job: Job) -> Iterator[None]:
    """Replace out-of-memory errors by one with advice.

    Raises:
        RunError: instead of the errors of Python, NumPy and torch.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise _explain(job) from error


def _explain(job: Job) -> RunError:
    batch, parallel, weights = job.batch, job.parallel, training_bytes(job)
    # Equal parts are the least that ranks hold who divide what is trained; DeepSpeed has its own.
    ranks = parallel.world_size // (1 if parallel.divides_experts else parallel.copies)
    is_elsewhere = parallel.sharding.offload or parallel.uses_deepspeed
    # Bytes of the device altogether.
    on_gpu = job.parallel.device != "cpu" and torch.cuda.is_available()
    memory = torch.cuda.mem_get_info()[1] if on_gpu else machine_memory()
    if weights is not None and weights / ranks > memory and not is_elsewhere:
        each = f" on each of {ranks} ranks" if ranks > 1 else ""
        return RunError(
            f"there is too little memory for the model itself: its parameters, gradients and "
            f"optimizer state take at least {weights / ranks / 2**30:,.1f} GiB{each} whatever the "
            f"batch is, and this device has {memory / 2**30:,.1f} GiB. What helps: a smaller "
            f"model, precision.params = bf16, or an optimizer that keeps less state"
        )
    return RunError(
        f"there is too little memory for batch.micro_size = {batch.micro_size} sequences of "
        f"batch.sequence_length = {batch.sequence_length} tokens with this model and data. What "
        f"helps: {'; '.join([*memory_suggestions(job), 'less data'])}"
    )


def explain(error: Exception) -> RunError | None:
    """Explain an error of PyTorch by the setting that causes it.

    Returns:
        an error with advice; None if the cause is unknown.
    """
    from setpoint.compile.watch import explain as explain_compiling

    # Compilers pass on, in an error of their own, that an operation cannot be deterministic.
    return explain_determinism(error) or explain_compiling(error)
