"""Explanations of errors in a step: out of memory, and operations unsupported by PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from setpoint.config import RunError
from setpoint.memory.usage import is_out_of_memory
from setpoint.parallel.determinism import explain as explain_determinism
from setpoint.train.config import Job
from setpoint.train.rules.run_rules import memory_suggestions


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
        batch = job.batch
        raise RunError(
            f"there is too little memory for batch.micro_size = {batch.micro_size} sequences of "
            f"batch.sequence_length = {batch.sequence_length} tokens with this model and data. "
            f"What helps: {'; '.join([*memory_suggestions(job), 'less data'])}"
        ) from error


def explain(error: Exception) -> RunError | None:
    """Explain an error of PyTorch by the setting that causes it.

    Returns:
        an error with advice; None if the cause is unknown.
    """
    from setpoint.compile.watch import explain as explain_compiling

    # Compilers pass on, in an error of their own, that an operation cannot be deterministic.
    return explain_determinism(error) or explain_compiling(error)
