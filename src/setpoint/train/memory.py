"""Too little memory, in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from setpoint.config import RunError
from setpoint.train.config import Job


@contextmanager
def enough_memory(job: Job) -> Iterator[None]:
    """Say what to make smaller where memory does not suffice.

    Arguments:
        job: the resolved configuration.

    Returns:
        a context.

    Raises:
        RunError: in place of the several errors that Python, NumPy and torch have for it.
    """
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise _in_words(job) from error
    except RuntimeError as error:
        # The CPU's allocator has no class of its own, and a size can overflow before it is asked.
        words = (
            "can't allocate memory",
            "not enough memory",
            "Storage size calculation overflowed",
        )
        if not any(text in str(error) for text in words):
            raise
        raise _in_words(job) from error


def _in_words(job: Job) -> RunError:
    batch = job.batch
    return RunError(
        f"there is too little memory for batch.micro_size = {batch.micro_size} sequences of "
        f"batch.sequence_length = {batch.sequence_length} tokens with this model and data; give a "
        f"smaller batch.micro_size (batch.accumulation makes up for it), a smaller model, or less "
        f"data"
    )
