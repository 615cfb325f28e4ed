"""What every source yields and what every corpus records of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from setpoint.data.tokenizers.tokenizer import Tokenizer

HASHED = 1 << 20
"""Tokens of a document that are hashed at a time."""


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
    """

    name: str
    data: bytes = b""
    tokens: npt.NDArray[np.integer[Any]] | None = field(default=None, compare=False)
    trained: npt.NDArray[np.bool_] | None = field(default=None, compare=False)
    score: float | None = field(default=None, compare=False)

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
"""Where in a part of a stream a document begins: `row`, its number, and more; JSON-able."""
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
