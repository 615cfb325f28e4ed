"""Documents, their records, and the protocols of sources."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, overload

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


HASHED = 1 << 20
"""Tokens that are hashed at a time."""


class TokenPlace(NamedTuple):
    """Position of a document in a token file.

    Arguments:
        offset: bytes before the first token of the file.
        total: tokens of the file.
        first: index of the document's first token.
    """

    path: str
    dtype: str
    offset: int
    total: int
    first: int = 0


@dataclass(frozen=True, slots=True)
class Document:
    """A named text, or its tokens; the unit of the split and of the data record.

    Arguments:
        name: unique in the corpus and the same on every machine, `source/relative/path`.
        data: the text as UTF-8; may be empty if `tokens` are given.
        tokens: (T,) ids, from a source that does its own tokenizing.
        trained: (T,) bool, target mask of `tokens`. Such a document is complete, like a
            conversation: it has no separators, its first token is only an input, and its last token
            only a target. None: plain text between separators; all tokens are targets.
        score: key of `data.curriculum`; None: no score.
        place: position of `tokens` in the file from which they are mapped; None: in memory.
    """

    name: str
    data: bytes = b""
    tokens: npt.NDArray[np.integer[Any]] | None = field(default=None, compare=False)
    trained: npt.NDArray[np.bool_] | None = field(default=None, compare=False)
    score: float | None = field(default=None, compare=False)
    place: TokenPlace | None = field(default=None, compare=False)

    @property
    def size(self) -> int:
        """Bytes of the text, or of the tokens in their dtype."""
        return len(self.data) if self.tokens is None else self.tokens.nbytes

    def record(self) -> FileRecord:
        """Entry of the data record: name, size in bytes and SHA-256."""
        digest = hashlib.sha256(self.data)
        if self.tokens is None and self.trained is None:
            return FileRecord(self.name, self.size, digest.hexdigest())
        import numpy as np  # `check` looks at text files without it

        if self.tokens is not None:
            for offset in range(0, len(self.tokens), HASHED):  # as int64, a piece at a time
                piece = self.tokens[offset : offset + HASHED]
                digest.update(np.ascontiguousarray(piece, dtype="<i8").data)
        if self.trained is not None:
            digest.update(np.packbits(self.trained).data)
        return FileRecord(self.name, self.size, digest.hexdigest())


class FileRecord(NamedTuple):
    """Entry of a document in the data record: a tuple, written to JSON as a list.

    Arguments:
        sha256: hexadecimal SHA-256 of the bytes.
    """

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class DataIdentity:
    """Identity of a corpus in records, checkpoints and messages.

    Arguments:
        side: "train", "held_out" or the name of an evaluation data set.
        digest: equal digests mean equal tokens.
        tokens, bytes: numbers of tokens and bytes, with bytes as the tokenizer sees them. None for
            streams, whose length is unknown.
        files: name, size and SHA-256 of each document, in order.
        prepared: folder of the prepared data from which the corpus is mapped; None: in memory.
    """

    side: str
    digest: str
    tokens: int | None
    bytes: int | None
    files: Sequence[FileRecord]
    prepared: str | None = None

    @classmethod
    def joined(cls, parts: Sequence[DataIdentity]) -> DataIdentity:
        """Combined identity of several corpora of one side."""
        digest = hashlib.sha256("".join(part.digest for part in parts).encode()).hexdigest()
        tokens, size = (
            None if None in counts else sum(count or 0 for count in counts)
            for counts in ([part.tokens for part in parts], [part.bytes for part in parts])
        )
        prepared = ", ".join(dict.fromkeys(part.prepared for part in parts if part.prepared))
        files = ManyRecords([part.files for part in parts])
        return cls(parts[0].side, digest, tokens, size, files, prepared or None)


class Records(Sequence[FileRecord], ABC):
    """Sequence of document records, looked up one at a time."""

    @abstractmethod
    def record(self, number: int) -> FileRecord:
        """The record of a document, by its number from 0."""

    @overload
    def __getitem__(self, key: int) -> FileRecord: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[FileRecord]: ...
    def __getitem__(self, key: int | slice) -> FileRecord | Sequence[FileRecord]:
        numbers = range(len(self))[key]  # as a list does it, and with its IndexError
        return self.record(numbers) if isinstance(numbers, int) else [*map(self.record, numbers)]

    def __iter__(self) -> Iterator[FileRecord]:
        return map(self.record, range(len(self)))


class ManyRecords(Records):
    """Concatenation of the documents of several corpora, without copies."""

    def __init__(self, parts: Sequence[Sequence[FileRecord]]) -> None:
        self.parts = tuple(parts)

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def __iter__(self) -> Iterator[FileRecord]:
        return chain.from_iterable(self.parts)

    def record(self, number: int) -> FileRecord:
        for part in self.parts:
            if number < len(part):
                return part[number]
            number -= len(part)
        raise IndexError(number)


C = TypeVar("C")


class BuiltSource(Generic[C]):
    """Base of sources, which are built from a section.

    A source has these methods:

    - `documents()` yields the same documents in the same order each time; or, if it does its own
      tokenizing, `tokenized(tokenizer)`, and `texts()` if a tokenizer can be trained on it
    - `inputs()`, optional: yields a line for each file or table, with a state that changes with its
      content; without it, or if it returns None, nothing is cached

    They raise a `SetpointError` if an input is missing, unreadable or not text.

    Arguments:
        where: path of the section in the job, for messages.
    """

    def __init__(self, config: C, *, where: str = "data.sources") -> None:
        self.config, self.where = config, where


Place = Mapping[str, Any]
"""Position in a part of a stream: the number of the `row`, and what the source adds; JSON-able."""
Placed = tuple[Document, Callable[[], Place]]
"""A document, and a function that returns the position after it; call it before the next one."""


class StreamSource(Protocol):
    """A source that can be streamed during training, starting at any position."""

    def parts(self) -> Sequence[FileRecord]:
        """The parts of the source, such as files, in a fixed order.

        Returns:
            names; size and hash change with the content.

        Raises:
            SetpointError: an input is missing.
        """
        ...

    def read(self, part: int, place: Place) -> Iterator[Placed]:
        """The documents of a part, starting at a position; an empty position is its start.

        Raises:
            SetpointError: the part cannot be read or is not text; names the row.
        """
        ...
