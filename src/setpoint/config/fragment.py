"""Fragments: files that hold the fields of one section, named by `extends` inside it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from .errors import Invalid, SetpointError
from .files.limits import MAX_FILES, MAX_NESTING
from .files.plain import PlainScalar
from .origin import FILE, Origin, Path, short_name

if TYPE_CHECKING:
    from .edit import Editor
    from .files.document import Document

HEADERS = ("$schema", "setpoint")  # they speak of the file


def fragments(
    editor: Editor, names: object, origin: Origin, path: Path
) -> Iterator[tuple[dict[str, object], Origin]]:
    """Read the files that a section extends; each is to be put onto the section as it comes.

    Arguments:
        editor: the layer that is being put onto the draft; gets what is wrong with a file.
        names: a file, or a list of them; relative to the file that names them.
        origin: the layer that names them.
        path: the section's path.

    Returns:
        an iterator over the fields that each file holds, and the file as their origin.
    """
    for name in _names(editor, names, origin, path):
        try:
            document, real = _read(editor, name, origin, path)
        except SetpointError as error:
            shown = error if isinstance(error, Invalid) else Invalid(str(error))
            editor.report((*path, "extends"), name, origin, shown)
            continue
        values = {key: value for key, value in document.data.items() if key not in HEADERS}
        editor.reading.append(real)
        # It is read now, and counts for less than what names it.
        where = partial(_where, document, len(path))
        yield values, Origin(FILE, document.name, where, origin.order - 0.5)
        editor.reading.pop()


def _read(editor: Editor, name: str, origin: Origin, path: Path) -> tuple[Document, str]:
    from .files.read import read

    beside = os.path.dirname(origin.label) if origin.layer == FILE else ""
    file = os.path.join(beside, os.path.expanduser(name))
    real = os.path.realpath(file)
    if real in editor.reading or len(editor.reading) >= MAX_NESTING:
        chain = " -> ".join(short_name(each) for each in (*editor.reading, real))
        raise Invalid(f"extends itself, or one another more than {MAX_NESTING} deep: {chain}")
    editor.fragment_count += 1
    if editor.fragment_count > MAX_FILES:
        raise Invalid(f"fragments are read {MAX_FILES} times at most")
    document = read(file)
    if "setpoint" in document.data:
        from .migrate.document import migrated

        document, notes = migrated(type(editor.root), document, path)
        editor.notes.extend(notes)
    return document, real


def _where(document: Document, depth: int, path: Path) -> str:
    """Where a value stands in a file that holds a section of this depth."""
    return document.where(path[depth:])


def _names(editor: Editor, names: object, origin: Origin, path: Path) -> list[str]:
    if isinstance(names, PlainScalar):
        from .layers.flow import parse_list

        names = parse_list(names)
    listed = isinstance(names, list | tuple)
    many = list(cast(Sequence[object], names)) if listed else [names]
    found = [str(name) for name in many if isinstance(name, str) and name]
    if len(found) < len(many) or not many:
        error = Invalid("must be a file, or a list of files")
        editor.report((*path, "extends"), many, origin, error)
        return []
    return found
