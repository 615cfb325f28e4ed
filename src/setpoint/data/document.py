"""What every source yields and what every corpus records of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class Document:
    """One text with a name: the unit of the split and of the record.

    Arguments:
        name: unique in the corpus and the same on every machine, `source/relative/path`.
    """

    name: str
    data: bytes

    def record(self) -> FileRecord:
        """The line this document leaves in the record of the data.

        Returns:
            its name, size in bytes and SHA-256.
        """
        return FileRecord(self.name, len(self.data), hashlib.sha256(self.data).hexdigest())


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
        """The documents, sorted by name.

        Returns:
            an iterator; files are read as it advances.

        Raises:
            SetpointError: something to be read is missing, unreadable or not text.
        """
        ...
