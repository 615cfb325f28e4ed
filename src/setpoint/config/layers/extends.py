"""Files that extend other files: a whole configuration, or the fields of one section."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

from ..files.file_document import HEADER, FileDocument
from ..files.read import read_file
from ..values.node import Node
from ..values.origin import FILE, Origin, short_name
from ..words.errors import Invalid, SetpointError
from ..words.names import Path, can_be_named
from ..words.plain_data import MAX_NESTING, PlainScalar
from ..words.text import parse_list
from .presets import PRESET_PREFIX, preset_named

EXTENDS = "extends"
HEADERS = (EXTENDS, "$schema", HEADER)
"""Keys of a file that describe the file, not the configuration."""
USE_PRESET = (
    "The section of a preset is written @{}; a file that extends a whole preset declares it above "
    "its first section."
)


class ExtendingFiles:
    """The files of one configuration; detects cycles."""

    def __init__(self, root: type[Node]) -> None:
        self.root = root
        self.notes: list[str] = []
        self._open: list[str] = []
        # The fragments already applied to a section, each once.
        self._applied: dict[Path, list[str]] = {}

    def open(self, file: str | FileDocument, place: Path = ()) -> FileDocument:
        """Read a file, migrated to the current schema, and keep it open until `close`.

        Arguments:
            file: name of the file, or its document.
            place: the section whose fields the file sets; the empty path for a whole configuration.

        Raises:
            Invalid: the file is open already, or files are nested too deeply.
            SetpointError: the file cannot be read.
        """
        path = os.path.realpath(file if isinstance(file, str) else file.name)
        if path in self._open:
            raise Invalid(f"extends itself: {' -> '.join(map(short_name, (*self._open, path)))}")
        if len(self._open) >= MAX_NESTING:
            raise Invalid(f"at most {MAX_NESTING} files can extend one another in a chain")
        document = read_file(file) if isinstance(file, str) else file
        if HEADER in document.data:
            from ..migrations import migrated

            document, notes = migrated(self.root, document, place)
            self.notes.extend(notes)
        self._open.append(path)
        return document

    def close(self) -> None:
        """Close the file opened last."""
        self._open.pop()

    def fragments(
        self,
        given: object,
        origin: Origin,
        path: Path,
        presets: bool,
        fail: Callable[[object, Invalid], None],
    ) -> Iterator[tuple[str, Mapping[str, object], Origin]]:
        """Iterate over the files, or presets as `@name`, that a section extends.

        Arguments:
            given: the names of the files, relative to the file of the origin, which overrides them.
            presets: whether presets are accepted.
            fail: receives a name and its error.

        Returns:
            the name of a preset, or the fields and the origin of a file.
        """
        if isinstance(given, PlainScalar):
            given = parse_list(given)
        names = list(cast(Sequence[object], given)) if isinstance(given, list | tuple) else [given]
        if not names or not all(isinstance(name, str) and name for name in names):
            fail(names, Invalid("must be a file, or a list of files"))
            return
        listed: list[str] = []
        outermost = path not in self._applied
        applied = self._applied.setdefault(path, [])
        for name in map(str, names):
            if presets and name.startswith(PRESET_PREFIX):
                yield name, {}, origin
                continue
            try:
                if not can_be_named(name):
                    raise Invalid("is not a valid file name")
                file = file_beside(origin.label if origin.layer == FILE else "", name)
                if ":" in name and not os.path.exists(file):
                    raise Invalid(
                        "is not a file; one from another system, DIALECT:FILE, is a whole "
                        "configuration, which a file extends above its first section"
                    )
                if is_applied(name, file, listed, applied):
                    continue
                document = self.open(file, path)
            except Invalid as error:
                fail(name, error)
                continue
            except SetpointError as error:
                fail(
                    name,
                    Invalid(str(error), hint=USE_PRESET.format(name) if preset_named(name) else ""),
                )
                continue
            fields = {k: v for k, v in document.data.items() if k == EXTENDS or k not in HEADERS}

            def below(place: Path, document: FileDocument = document) -> str:
                return document.where(place[len(path) :])

            yield "", fields, Origin(FILE, document.name, below)
            self.close()
            applied.append(os.path.realpath(file))
            origin.order = origin.applied().order
        if outermost:
            del self._applied[path]


def file_beside(file: str, name: str) -> str:
    """The path of a file named in another one; in `DIALECT:FILE`, the second part is the path."""
    folder = os.path.dirname(file)
    path = os.path.join(folder, os.path.expanduser(name))
    dialect, colon, rest = name.partition(":")
    if colon and not os.path.exists(path):
        return f"{dialect}:{os.path.join(folder, os.path.expanduser(rest))}"
    return path


def is_applied(name: str, file: str, listed: list[str], applied: Sequence[str]) -> bool:
    """True if a file in `extends` was already applied, since each is applied only once.

    A file that several files extend is applied before the first of them, so it cannot be listed
    after a file that it precedes.

    Arguments:
        name: the file as written.
        file: path of the file.
        listed: the real paths of the files before it in the same list; its own is appended.
        applied: the real paths of all files applied so far, in order.

    Raises:
        Invalid: the written order cannot be kept.
    """
    path = os.path.realpath(file)
    if path in listed:
        raise Invalid(f"extends {name!r} twice; a file counts once, so name it once")
    places = [applied.index(other) for other in listed if other in applied]
    if path in applied and any(applied.index(path) < place for place in places):
        raise Invalid(
            f"extends {name!r} after {short_name(applied[max(places)])}, which already comes after "
            f"it: a file counts once, before the first file that extends it. Name it first, "
            f"or leave it out"
        )
    listed.append(path)
    return path in applied
