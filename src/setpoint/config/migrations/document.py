"""A configuration file of an older schema, migrated in memory as it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..files.document import Document, Place
from ..values.node import Node
from ..words.errors import SetpointError
from ..words.names import Path, dotted
from .chain import HEADER, migrate, schema_of


def migrated(root: type[Node], document: Document, at: Path = ()) -> tuple[Document, list[str]]:
    """A file as today's schema would have it.

    Arguments:
        document: the file; one without the header `setpoint = {schema = N}` is taken as it is.
        at: the section whose fields a fragment holds; the empty path for a whole file.

    Returns:
        the document itself, or one whose data has changed and whose places are those of the old
        keys; and what has changed, in words.

    Raises:
        SetpointError: if the header is wrong or of a newer schema, or a value cannot be taken over.
    """
    schema = schema_of(root, document.data, document.name)
    if schema is None or schema == root.__setpoint__.schema:
        return document, []
    header = document.data[HEADER]
    data: dict[str, Any] = {key: value for key, value in document.data.items() if key != HEADER}
    for part in reversed(at):
        data = {str(part): data}
    tree = migrate(root, data, schema, name=document.name)
    changed: Any = tree.data
    for part in at:
        if set(changed) != {str(part)}:
            raise SetpointError(
                f"{document.name}: its fields of schema {schema} are not all of {dotted(at)} any "
                f"more; bring it up to date by hand, with schema = {root.__setpoint__.schema}"
            )
        changed = changed[str(part)]
    notes = [f"{document.name} (schema {schema}): {note}" for note in tree.notes]

    def old_path(path: Path) -> Path:
        return tree.old_path((*map(str, at), *path))[len(at) :]

    return Moved(document, {HEADER: header, **changed}, old_path), notes


class Moved(Document):
    """A document with other data, whose values are still found where they were written."""

    __slots__ = ("_document", "_old_path")

    def __init__(
        self, document: Document, data: dict[str, Any], old_path: Callable[[Path], Path]
    ) -> None:
        super().__init__(document.name, document.format, data, document.text, lambda: Place(0))
        self._document = document
        self._old_path = old_path

    def locate(self, path: Path) -> tuple[int, int] | None:
        """See `Document.locate`."""
        return self._document.locate(self._old_path(path))
