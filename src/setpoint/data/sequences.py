"""What training and evaluation see of a text: sequences by number, and what text it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from setpoint.data.document import FileRecord
from setpoint.shapes.batch import Batch


@dataclass(frozen=True, slots=True)
class DataIdentity:
    """What a text is recognised by, in records, in checkpoints and in messages.

    Arguments:
        side: "train", "held_out" or the name of a text that is only evaluated on.
        digest: equal digests mean equal tokens.
        tokens, bytes: how many there are; bytes as the tokenizer sees them.
        files: name, size and SHA-256 of each document, in order.
    """

    side: str
    digest: str
    tokens: int
    bytes: int
    files: Sequence[FileRecord]


class Sequences(Protocol):
    """Sequences of equal length, each by its number."""

    @property
    def sequence_length(self) -> int:
        """Tokens that the model reads of each, S."""
        ...

    @property
    def identity(self) -> DataIdentity:
        """What they are sequences of."""
        ...

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources, which `Batch.source` counts from 0."""
        ...

    def __len__(self) -> int: ...

    def rows(self, indices: npt.NDArray[np.int64]) -> Batch:
        """Some of them, (B,) numbers in 0 .. len - 1, as a batch."""
        ...
