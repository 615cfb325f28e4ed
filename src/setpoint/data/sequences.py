"""What training and evaluation see of a text: sequences by number, and what text it is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, overload, runtime_checkable

from setpoint.data.document import FileRecord

if TYPE_CHECKING:
    from setpoint.shapes.batch import Batch


@dataclass(frozen=True, slots=True)
class DataIdentity:
    """What a text is recognised by, in records, in checkpoints and in messages.

    Arguments:
        side: "train", "held_out" or the name of a text that is only evaluated on.
        digest: equal digests mean equal tokens.
        tokens, bytes: how many there are; bytes as the tokenizer sees them. None: of a stream,
            whose end is not known.
        files: name, size and SHA-256 of each document, in order.
        prepared: folder of the prepared data that they are mapped from; None: they are in memory.
    """

    side: str
    digest: str
    tokens: int | None
    bytes: int | None
    files: Sequence[FileRecord]
    prepared: str | None = None

    @classmethod
    def joined(cls, parts: Sequence[DataIdentity]) -> DataIdentity:
        """What several texts of one side are together."""
        digest = hashlib.sha256("".join(part.digest for part in parts).encode()).hexdigest()
        tokens, size = (
            None if None in counts else sum(count or 0 for count in counts)
            for counts in ([part.tokens for part in parts], [part.bytes for part in parts])
        )
        prepared = ", ".join(dict.fromkeys(part.prepared for part in parts if part.prepared))
        files = ManyRecords([part.files for part in parts])
        return cls(parts[0].side, digest, tokens, size, files, prepared or None)


class ManyRecords(Sequence[FileRecord]):
    """The documents of several texts as one sequence, none of which is copied."""

    def __init__(self, parts: Sequence[Sequence[FileRecord]]) -> None:
        self.parts = tuple(parts)

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def __iter__(self) -> Iterator[FileRecord]:
        return chain.from_iterable(self.parts)

    @overload
    def __getitem__(self, key: int) -> FileRecord: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[FileRecord]: ...
    def __getitem__(self, key: int | slice) -> FileRecord | Sequence[FileRecord]:
        if isinstance(key, slice):
            return [self[place] for place in range(*key.indices(len(self)))]
        place = key + len(self) if key < 0 else key
        for part in self.parts:
            if 0 <= place < len(part):
                return part[place]
            place -= len(part)
        raise IndexError(key)


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

    @property
    def epoch_rows(self) -> int | None:
        """Rows of an epoch; None: of a stream, whose end is not known."""
        ...

    def rows(self, rows: Rows) -> Batch:
        """Some of them as a batch."""
        ...

    def describe(self, rows: Rows) -> str:
        """Name documents of some of them, for messages."""
        ...


class CountedSequences(Sequences, Protocol):
    """Sequences that have numbers, from 0."""

    def __len__(self) -> int:
        """How many there are."""
        ...


@runtime_checkable
class NamedRows(Protocol):
    """Sequences that know of what documents their rows are, for `setpoint data inspect`."""

    def names_in(self, rows: Rows) -> Sequence[Sequence[str | None] | None]:
        """The name of the document of each of the S + 1 tokens of each row.

        None for padding, and for a row of which it is not known.
        """
        ...
