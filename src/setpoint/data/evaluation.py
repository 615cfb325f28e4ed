"""A text in order, the same at each evaluation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from setpoint.config import SetpointError
from setpoint.data.sequences import Sequences
from setpoint.shapes.batch import Batch


def evaluation_batches(
    sequences: Sequences, *, micro_size: int, limit: int | None = None
) -> Iterator[Batch]:
    """Batches over sequences from the first one on, the same at each call.

    Documents come in the order of the split's hash, so the first sequences are a fair sample of
    all. With `evaluation_windows` each token but the first is a target exactly once, and the
    `target_bytes` add up to the bytes of the text.

    Arguments:
        micro_size: B, sequences in a batch; the last batch may be smaller.
        limit: how many sequences to take; unset, or above what there is: all.

    Returns:
        an iterator of batches. The result of an evaluation depends on `limit`, not on how they are
        grouped by `micro_size`.

    Raises:
        SetpointError: at the call, if a number is below 1.
    """
    for name, value in (
        ("batch.micro_size", micro_size),
        ("evaluation sequences", 1 if limit is None else limit),
    ):
        if value < 1:
            raise SetpointError(f"{name}: {value} is below 1.\nValid: 1 or more.")
    indices = np.arange(min(len(sequences), limit or len(sequences)))
    return (
        sequences.rows(indices[first : first + micro_size])
        for first in range(0, len(indices), micro_size)
    )
