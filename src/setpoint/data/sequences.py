"""What training and evaluation see of a text: sequences by number, and what text it is."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

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

    @classmethod
    def joined(cls, parts: Sequence[DataIdentity]) -> DataIdentity:
        """What several texts of one side are together."""
        digest = hashlib.sha256("".join(part.digest for part in parts).encode()).hexdigest()
        tokens, size = sum(part.tokens for part in parts), sum(part.bytes for part in parts)
        files = tuple(file for part in parts for file in part.files)
        return cls(parts[0].side, digest, tokens, size, files)


Rows = Any
"""Which rows, as their sequences understand it: an array of numbers, a list of documents to pack;
something that has a length and can be sliced."""


class Sequences(Protocol):
    """Rows of equal length, made when they are named."""

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

    def __len__(self) -> int:
        """Rows of an epoch."""
        ...

    def rows(self, rows: Rows) -> Batch:
        """Some of them as a batch."""
        ...

    def describe(self, rows: Rows) -> str:
        """Name documents of some of them, for messages."""
        ...


@runtime_checkable
class NamedRows(Protocol):
    """Sequences that know of what documents their rows are, for `setpoint data inspect`."""

    def names_in(self, rows: Rows) -> Sequence[Sequence[str | None] | None]:
        """The name of the document of each of the S + 1 tokens of each row.

        None for padding, and for a row of which it is not known.
        """
        ...
