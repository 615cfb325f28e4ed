"""Files that extend other files: a whole configuration, or the fields of one section."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..files.document import Document
from ..files.read import read_file
from ..migrations import HEADER, migrated
from ..values.node import Node
from ..values.origin import short_name
from ..words.errors import Invalid
from ..words.names import Path
from ..words.plain_data import MAX_FILES, MAX_NESTING

EXTENDS = "extends"
HEADERS = (EXTENDS, "$schema", HEADER)
"""Keys of a file that speak of the file, not of the configuration."""


class ExtendingFiles:
    """The files of one configuration; those that are open cannot be extended by one another.

    Attributes:
        notes: what has changed since a file of an older schema was written, in words.
    """

    def __init__(self, root: type[Node]) -> None:
        self.root = root
        self.notes: list[str] = []
        self._open: list[str] = []
        self._count = 0

    def open(self, file: str | Document, at: Path = ()) -> Document:
        """Read a file, in terms of today's schema; it is open until `close`.

        Arguments:
            file: its name, or what was read of it already.
            at: the section whose fields it holds; the empty path for a whole configuration.

        Raises:
            Invalid: if it is open already, or there are too many files.
            SetpointError: if it cannot be read.
        """
        real = os.path.realpath(file if isinstance(file, str) else file.name)
        if real in self._open:
            raise Invalid(f"extends itself: {' -> '.join(map(short_name, (*self._open, real)))}")
        if len(self._open) >= MAX_NESTING:
            raise Invalid(f"files that extend one another are {MAX_NESTING} at most")
        if self._count >= MAX_FILES:
            raise Invalid(f"a configuration reads {MAX_FILES} files at most")
        document = read_file(file) if isinstance(file, str) else file
        if HEADER in document.data:
            document, notes = migrated(self.root, document, at)
            self.notes.extend(notes)
        self._count += 1
        self._open.append(real)
        return document

    def close(self) -> None:
        """Leave the file that was opened last."""
        self._open.pop()


def is_applied(name: str, file: str, listed: list[str], applied: Sequence[str]) -> bool:
    """True if a file of a list to extend has been put on already: it counts once.

    A file that several files extend counts before the first of them. So it cannot be named behind
    a file that it counts before.

    Arguments:
        name: the file as it is written.
        file: its path.
        listed: the real paths of what is named before it in the same list; it is added.
        applied: those of all that was put on so far, in order.

    Raises:
        Invalid: if the order that is written cannot be kept.
    """
    real = os.path.realpath(file)
    if real in listed:
        raise Invalid(f"extends {name!r} twice; a file counts once, so name it once")
    places = [applied.index(other) for other in listed if other in applied]
    if real in applied and any(applied.index(real) < place for place in places):
        raise Invalid(
            f"extends {name!r} after {short_name(applied[max(places)])}, which comes after it "
            f"already: a file counts once, before the first file that extends it. Name it first, "
            f"or leave it out"
        )
    listed.append(real)
    return real in applied
