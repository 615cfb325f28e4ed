"""The migrations of a root by schema, the records and files they change, hints for old keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, TypeVar, cast

from ..files.document import Document, Place
from ..schema.class_info import versioned
from ..schema.tree import classes_at, classes_below
from ..values.node import Node
from ..words.errors import SetpointError
from ..words.names import Path, dotted
from .operations import Entry, Operation, Tree, filled, guessed

HEADER = "setpoint"
_declared: dict[str, dict[int, tuple[Operation, ...]]] = {}

F = TypeVar("F", bound=Callable[[], Iterable[Operation]])


def migration(*, to: int) -> Callable[[F], F]:
    """Declare what changed from one schema to the next, in the module that the root names."""

    def declare(function: F) -> F:
        table = _declared.setdefault(function.__module__, {})
        if to < 2 or to in table:
            reason = "the first schema has none" if to < 2 else "there are two"
            raise TypeError(f"{function.__module__}: the migration to schema {to}: {reason}")
        operations = tuple(function())
        for operation in operations:
            operation.schema = to
        table[to] = operations
        return function

    return declare


def chain(root: type[Node], start: int = 1) -> list[Operation]:
    """Every change of a root from a schema on, in order.

    Raises:
        SetpointError: if the root's migrations lack a schema, or know one that is still to come.
    """
    info = root.__setpoint__
    table: dict[int, tuple[Operation, ...]] = {}
    if info.migrations is not None:
        try:
            import_module(info.migrations)
        except ImportError as error:
            raise SetpointError(
                f"the migrations of {root.__name__} cannot be imported: {error}"
            ) from error
        table = _declared.get(info.migrations, {})
    wanted = set(range(2, info.schema + 1))
    if wanted != table.keys():
        lacking = ", ".join(map(str, sorted(wanted - table.keys())))
        ahead = ", ".join(map(str, sorted(table.keys() - wanted)))
        where = info.migrations or "no module of migrations is named"
        reason = f"there is none to {lacking}" if lacking else f"there is one to {ahead} already"
        raise SetpointError(
            f"{root.__name__} is of schema {info.schema}, but its chain of migrations is not "
            f"complete: {reason} ({where})"
        )
    return [change for to in range(start + 1, info.schema + 1) for change in table[to]]


def schema_of(root: type[Node], data: Mapping[str, Any], name: str) -> int | None:
    """The schema that a record or a file says it is of.

    Returns:
        the schema; None for data without the header.

    Raises:
        SetpointError: if the header is no header, or of a schema that this software cannot know.
    """
    if HEADER not in data:
        return None
    header: Any = guessed(data[HEADER])
    schema: Any = cast(dict[str, Any], header).get("schema") if isinstance(header, dict) else None
    if type(schema) is not int or schema < 1:
        raise SetpointError(
            f"{name}: {HEADER} must say which schema this is, as in {HEADER} = {{schema = "
            f"{root.__setpoint__.schema}}}"
        )
    if schema > root.__setpoint__.schema:
        raise SetpointError(
            f"{name}: written by schema {schema}, this Setpoint reads up to "
            f"{root.__setpoint__.schema}; update Setpoint to load it"
        )
    return schema


def migrate(
    root: type[Node],
    data: Mapping[str, Any],
    start: int,
    origins: Mapping[str, Entry] | None = None,
    name: str = "",
) -> Tree:
    """Take plain data to today's schema.

    Arguments:
        origins: of a record, as `origins.json` has them; None for a file, which may leave out
            values.

    Raises:
        SetpointError: if a value cannot be taken over.
    """
    tree = Tree(data, origins, complete=origins is not None)
    for operation in chain(root, start):
        try:
            operation.apply(tree)
        except SetpointError as error:
            where = f"{name} (schema {start}): " if name else ""
            raise SetpointError(f"{where}{error}") from error
    return tree


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
                f"{document.name}: not all of its fields of schema {schema} are still in "
                f"{dotted(at)}; update it by hand, with schema = {root.__setpoint__.schema}"
            )
        changed = changed[str(part)]
    notes = [f"{document.name} (schema {schema}): {note}" for note in tree.notes]

    def old_path(path: Path) -> Path:
        return tree.old_path((*map(str, at), *path))[len(at) :]

    return MigratedDocument(document, {HEADER: header, **changed}, old_path), notes


class MigratedDocument(Document):
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


def retired_hint(root: type[Node], path: str, file: str | None = None) -> str:
    """The sentence for an unknown key that older schemas had.

    Arguments:
        file: the file that holds it; None for flags, variables and Python.

    Returns:
        the sentence; the empty string if no schema had the key.
    """
    if root.__setpoint__.migrations is None:
        return ""
    operations = chain(root)
    now = path.replace("-", "_")
    operation = change = _last_change(operations, now)
    while change is not None and now:
        old, parts = change.old.split("."), now.split(".")
        place = filled(change.old, change.new, tuple(parts[: len(old)])) if change.new else ()
        now = dotted((*place, *parts[len(old) :])) if place else ""
        operations = operations[operations.index(change) + 1 :]
        change = _last_change(operations, now)
    if operation is not None:
        sentence = operation.sentence()
    elif _exists(root, tuple(path.split("."))):
        return ""
    else:  # a whole section may have gone elsewhere, field by field
        inside = [o for o in operations if o.old.startswith(f"{now}.")]
        if not inside:
            return ""
        sentence, now = f"{path} is not a section since schema {inside[-1].schema}", ""
    if file is not None:
        return f"{sentence}; run {root.__setpoint__.command(f'migrate {file}')}."
    return f"{sentence}; write {now}." if now else f"{sentence.rstrip('.')}."


def retired_hint_in(cls: type[Node], key: str) -> str:
    """The same for an unknown key of a section, whose root is not known."""
    name = key.replace("-", "_")
    for root in versioned:
        for operation in chain(root) if cls in classes_below(root) else ():
            *above, last = operation.old.split(".")
            if (
                operation.of in (None, cls.__setpoint__.tag)
                and last == name
                and cls in classes_at(root, tuple(above))
            ):
                return retired_hint(root, operation.old)
    return ""


def oldest_schema(root: type[Node], data: Mapping[str, Any]) -> int | None:
    """The schema that data without a header must be of, going by the keys that it has.

    Returns:
        the last schema that still had the first of the keys to go; None if it has none of them.
    """
    tree = Tree(data)
    for operation in chain(root):
        places = tree.find(operation.old, operation.of) if operation.old else []
        if any(not _exists(root, place) for place in places):
            return operation.schema - 1
    return None


def _last_change(operations: Iterable[Operation], path: str) -> Operation | None:
    """The last change that took a key away, or a section that it was in."""
    words = path.split(".")
    match = None
    for operation in operations:
        old = operation.old.split(".")
        pairs = zip(old, words, strict=False)
        if len(old) <= len(words) and all(part in ("*", word) for part, word in pairs):
            match = operation
    return match


def _exists(root: type[Node], path: Path) -> bool:
    """True if a path leads to a field of today, in any variant."""
    return any(
        str(path[-1]).replace("-", "_") in cls.__setpoint__.fields
        for cls in classes_at(root, path[:-1])
    )
