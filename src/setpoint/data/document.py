"""Documents, which all sources yield, and their records."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, overload

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from setpoint.data.tokenizers.tokenizer import Tokenizer

HASHED = 1 << 20
"""Tokens of a document that are hashed at a time."""


class TokenPlace(NamedTuple):
    """Position of the tokens of a document in a file that holds nothing but tokens from there on.

    Arguments:
        offset: bytes before the first token of the file.
        total: tokens of the file.
        first: number of the document's first token.
    """

    path: str
    dtype: str
    offset: int
    total: int
    first: int = 0


@dataclass(frozen=True, slots=True)
class Document:
    """One text with a name, or the tokens of one: the unit of the split and of the record.

    Arguments:
        name: unique in the corpus and the same on every machine, `source/relative/path`.
        data: the text as UTF-8; empty where there are `tokens`.
        tokens: (T,) ids, of a source that makes them itself.
        trained: (T,) bool, which of `tokens` are targets. The document is then complete, as a
            conversation is: no separator stands around it, its first token is read only and its
            last one a target only. None: it is plain text between separators, all of them targets.
        score: its place in an order of `data.curriculum`; None: its source reads none.
        place: of `tokens` in the file that they are mapped from; None: they are in memory.
    """

    name: str
    data: bytes = b""
    tokens: npt.NDArray[np.integer[Any]] | None = field(default=None, compare=False)
    trained: npt.NDArray[np.bool_] | None = field(default=None, compare=False)
    score: float | None = field(default=None, compare=False)
    place: TokenPlace | None = field(default=None, compare=False)

    @property
    def size(self) -> int:
        """Bytes of the text, or of the tokens as they are given."""
        return len(self.data) if self.tokens is None else self.tokens.nbytes

    def record(self) -> FileRecord:
        """The line this document leaves in the record of the data.

        Returns:
            its name, size in bytes and SHA-256.
        """
        digest = hashlib.sha256(self.data)
        if self.tokens is None and self.trained is None:
            return FileRecord(self.name, self.size, digest.hexdigest())
        import numpy as np  # `check` looks at text files without it

        if self.tokens is not None:
            for at in range(0, len(self.tokens), HASHED):  # as int64, a piece at a time
                piece = self.tokens[at : at + HASHED]
                digest.update(np.ascontiguousarray(piece, dtype="<i8").data)
        if self.trained is not None:
            digest.update(np.packbits(self.trained).data)
        return FileRecord(self.name, self.size, digest.hexdigest())


class FileRecord(NamedTuple):
    """A document as the run directory remembers it; a tuple, so JSON writes it as a list.

    Arguments:
        sha256: hexadecimal SHA-256 of the bytes.
    """

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class DataIdentity:
    """Identity of a text, in records, in checkpoints and in messages.

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
        """Identity of several texts of one side."""
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


class Source(Protocol):
    """Anything that yields documents. Two calls of `documents` yield the same ones.

    It is built as `section.build(where=...)`, with the path of its section for messages.
    """

    def documents(self) -> Iterator[Document]:
        """The documents, in an order of the source's own that never changes.

        Returns:
            an iterator; files are read as it advances.

        Raises:
            SetpointError: something to be read is missing, unreadable or not text.
        """
        ...


Place = Mapping[str, Any]
"""Position of a document in a part of a stream: `row`, its number, and more; JSON-able."""
Placed = tuple[Document, Callable[[], Place]]
"""A document, and what tells the place behind it until the next one is asked for."""


class StreamSource(Protocol):
    """A source that is read while it is trained on, from any place on."""

    def parts(self) -> Sequence[FileRecord]:
        """The files, or what else it is made of, in an order that never changes.

        Returns:
            each with its name; size and hash are those of what tells that its content changed.

        Raises:
            SetpointError: something to be read is missing.
        """
        ...

    def read(self, part: int, place: Place) -> Iterator[Placed]:
        """The documents of a part from a place on; an empty place is its start.

        Raises:
            SetpointError: it cannot be read, or is not text; with the row.
        """
        ...


class TokenSource(Protocol):
    """A source whose documents are tokens: of conversations, or of files that hold ids."""

    def tokenized(self, tokenizer: Tokenizer) -> Iterator[Document]:
        """The documents, as `Source.documents` gives them, with `tokens`.

        Raises:
            SetpointError: something to be read is missing or wrong, or does not fit the tokenizer.
        """
        ...
