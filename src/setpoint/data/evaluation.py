"""The held-out side in order, every token predicted once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from setpoint.config import SetpointError
from setpoint.data.corpus import Corpus
from setpoint.data.windows import cut, require_one_window
from setpoint.shapes.batch import Batch


def evaluation_batches(
    corpus: Corpus, *, sequence_length: int, micro_size: int, windows: int | None = None
) -> Iterator[Batch]:
    """Batches over the corpus from its start, the same at each call.

    Unlike in training, neighbouring windows share one token (the last target of one is the first
    input of the next) and the last window is padded: over the whole corpus each token but the
    first is a target exactly once, and the `target_bytes` add up to `corpus.byte_count`. Documents
    come in the order of the split's hash, so the first windows are a fair sample of all.

    Arguments:
        micro_size: B, windows in a batch; the last batch may be smaller.
        windows: how many windows to take; unset, or above what there is: all.

    Returns:
        an iterator of batches. The result of an evaluation depends on `windows`, not on how
        they are grouped by `micro_size`.

    Raises:
        SetpointError: at the call, if the corpus is shorter than one window or a number is below 1.
    """
    for name, value in (
        ("batch.sequence_length", sequence_length),
        ("batch.micro_size", micro_size),
        ("evaluation windows", 1 if windows is None else windows),
    ):
        if value < 1:
            raise SetpointError(f"{name}: {value} is below 1.\nValid: 1 or more.")
    require_one_window(corpus, sequence_length)
    count = evaluation_windows(corpus, sequence_length)
    starts = np.arange(min(count, windows or count)) * sequence_length
    return (
        cut(corpus, starts[first : first + micro_size], sequence_length)
        for first in range(0, len(starts), micro_size)
    )


def evaluation_windows(corpus: Corpus, sequence_length: int) -> int:
    """How many windows cover a corpus.

    Returns:
        ceil((T - 1) / S), the padded one included.
    """
    return -(-(len(corpus.tokens) - 1) // sequence_length)
