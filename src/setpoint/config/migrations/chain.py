"""Migrations of a root: the data they work on, their order by schema, and files they change."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, TypeVar, cast

from ..files.document import Document, Place
from ..values.node import Node
from ..values.scalar import Struct
from ..words.errors import SetpointError
from ..words.names import Path, dotted, within
from ..words.shown import MISSING, children, item_at, nested, rebuild
from ..words.texts import PlainScalar, guess

Entry = dict[str, Any]
# A step of a migration, which are repeated on the text of a file: ("move", old path, new path),
# ("put", path, value) or ("remove", path, None).
Step = tuple[str, Path, Any]
NAMES = r"[A-Za-z_]\w*(?:\.\w+)*"
REFERENCE = r"\$\{[^}]*\}"
_declared: dict[str, dict[int, tuple[Operation, ...]]] = {}
HEADER = "setpoint"


class Operation(Struct):
    """One change between a schema and the next.

    Arguments:
        of: the variant (`type`) of the section that the change is about; None for all.
    """

    # The schema that the change leads to; set when a migration is registered.
    schema = 0
    of = cast("str | None", None)

    def apply(self, tree: Tree) -> None:
        """Make the change.

        Arguments:
            tree: data of the schema before; afterwards it is of this one as far as the change goes.

        Raises:
            SetpointError: if a value cannot be taken over.
        """
        raise TypeError(f"{type(self).__name__} does not say what it does")

    def old_keys(self) -> tuple[str, ...]:
        """The keys that are no fields any more."""
        return ()

    def new_key(self, old: str) -> str | None:
        """Where a key has gone."""
        return None

    def sentence(self, old: str) -> str:
        """The hint for a key that is still used.

        Returns:
            a sentence without its end: `optim was renamed to optimizer in schema 2`.
        """
        return f"{old} was changed in schema {self.schema}"

    def places(self, tree: Tree, pattern: str) -> list[Path]:
        """The places that the change is about."""
        found = tree.find(pattern)
        if self.of is None:
            return found
        # A file may leave the variant to what it extends.
        return [path for path in found if tree.parent_type(path) in (self.of, None)]


def filled(old: str, new: str, path: Path) -> Path:
    """A new path with the keys that `*` stood for in the old one."""
    keys = [key for part, key in zip(old.split("."), path, strict=True) if part == "*"]
    return tuple(keys.pop(0) if part == "*" else part for part in new.split("."))


def converted(operation: Operation, path: Path, value: Any, call: Callable[[], Any]) -> Any:
    """Run a function of a migration on a value that may be anything.

    Raises:
        SetpointError: if it fails.
    """
    if "${" in str(value):
        raise SetpointError(
            f"{dotted(path)} = {value!r} holds a reference, whose value cannot be converted to "
            f"schema {operation.schema}; change it by hand"
        )
    try:
        return call()
    except Exception as error:
        raise SetpointError(
            f"{dotted(path)} = {value!r} cannot be migrated to schema {operation.schema}: "
            f"{type(error).__name__}: {error}; change it by hand"
        ) from error


def with_value(entry: Entry, value: Any) -> Entry:
    """The origins of a value that has been changed."""
    *before, last = entry["layers"]
    return {**entry, "value": value, "layers": [*before, {**last, "value": value}]}


def move(tree: Tree, old: Path, new: Path) -> None:
    """Move a value, or report it where the section that it would go to is switched off."""
    if not left_out(tree, old, new):
        tree.move(old, new)


def left_out(tree: Tree, old: Path, new: Path) -> bool:
    """Take a value away where the section that it would go to is switched off, with a note."""
    if not tree.is_off(new):
        return False
    tree.notes.append(
        f"{dotted(old)} = {tree.plain(old)!r} is left out: it belongs to {dotted(new[:-1])} now, "
        f"which is null"
    )
    tree.remove(old)
    return True


class Tree:
    """Data that is being migrated.

    Arguments:
        data: nested plain data; a copy is changed.
        origins: of a record, by dotted path; they follow their values.
        complete: whether every value is there, as in a record; a file may leave out any.
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        origins: Mapping[str, Entry] | None = None,
        *,
        complete: bool = False,
    ) -> None:
        from copy import deepcopy

        self.data: dict[str, Any] = deepcopy(dict(data))
        self.origins: dict[str, Entry] = deepcopy(dict(origins or {}))
        self.complete = complete
        self.notes: list[str] = []
        self.steps: list[Step] = []

    def find(self, pattern: str) -> list[Path]:
        """The places that a pattern means and that exist.

        Arguments:
            pattern: a dotted path; `*` stands for each item of a list or mapping. Hyphens and
                underscores are the same. `x.type` is found in `x = "adamw"`, too.
        """
        return list(_find(self.data, tuple(pattern.split(".")), ()))

    def get(self, path: Path) -> Any:
        """The value at a place that exists."""
        node: Any = self.data
        for part in path:
            node = node[part]
        return node

    def plain(self, path: Path) -> Any:
        """The value at a place as a function of a migration wants it.

        Returns:
            the value; texts without quotes, as YAML has them, are numbers where they look it.
        """
        return guessed(self.get(path))

    def move(self, old: Path, new: Path, *, same: bool = True) -> None:
        """Take a value with all that is below it to another place.

        Arguments:
            new: where it shall be; sections on the way are made, and one that is left empty goes.

        Raises:
            SetpointError: if something is there already, or no section can be.
        """
        value = self.get(old)
        self._make_room(old, new)
        self._take(old)
        self._insert(new, value)
        self.steps.append(("move", old, new))
        self._rename_origins(old, new)
        if same:
            self.rename_references(dotted(old), dotted(new))
        self._prune(old[:-1])

    def put(self, path: Path, value: Any) -> None:
        """Set a value, whether or not there is one.

        Arguments:
            path: where; sections on the way are made.

        Raises:
            SetpointError: if no section can be on the way.
        """
        self._make_room((), path)
        self._insert(path, value)
        self.steps.append(("put", path, value))

    def remove(self, path: Path) -> None:
        """Take a value away, with its origins.

        Arguments:
            path: a place that exists; a section that is left empty goes, too.
        """
        self._take(path)
        self.steps.append(("remove", path, None))
        key = dotted(path)
        for name in [name for name in self.origins if within(name, key)]:
            del self.origins[name]
        self._prune(path[:-1])

    def follow(self, new: Path, old: Path) -> None:
        """Remember that a value was made from another one, so that its origin can be shown."""
        self.steps.append(("follow", old, new))

    def parent_type(self, path: Path) -> str | None:
        """The tag of the section that a place lies in."""
        node: Any = self.data
        for part in path[:-1]:
            node = _child(node, part)
        found: object = cast(Any, node).get("type") if isinstance(node, dict) else node
        return found if isinstance(found, str) else None

    def old_path(self, path: Path) -> Path:
        """Where a value was in the data as it came.

        Returns:
            its first place; the path itself for what was not moved.
        """
        for kind, old, new in reversed(self.steps):
            if kind in ("move", "follow") and path[: len(new)] == new:
                path = (*old, *path[len(new) :])
        return path

    def is_off(self, path: Path) -> bool:
        """Whether a section on the way to a place is switched off."""
        node: Any = self.data
        for part in path[:-1]:
            if not isinstance(node, dict) or part not in node:
                return False
            node = cast(dict[Any, Any], node)[part]
            if node is None or node == "null":
                return True
        return False

    def _take(self, path: Path) -> None:
        del self.get(path[:-1])[path[-1]]

    def _insert(self, path: Path, value: Any) -> None:
        node: Any = self.data
        for part in path[:-1]:
            inner = _child(node, part)
            if inner is None:
                inner = node[part] = {}
            elif isinstance(inner, str):
                inner = node[part] = {"extends" if inner.startswith("@") else "type": inner}
            node = inner
        node[path[-1]] = value

    def _make_room(self, old: Path, new: Path) -> None:
        """Refuse a place that is taken, or that no section leads to."""
        node: Any = self.data
        for depth, part in enumerate(new[:-1]):
            inner: Any = _child(node, part)
            named = isinstance(inner, str) and "${" not in inner and inner != "null"
            wanted = list if isinstance(new[depth + 1], int) else dict
            if inner is not None and not named and not isinstance(inner, wanted):
                where = dotted(new[: depth + 1])
                raise SetpointError(
                    f"{dotted(new)} has no place: {where} is {guessed(inner)!r}; set "
                    f"{dotted(old) or dotted(new)} by hand as the new schema wants it"
                )
            node = cast(Any, inner)
        taken = isinstance(node, dict) and new[-1] in cast(dict[Any, Any], node)
        if taken and old:
            raise SetpointError(
                f"both {dotted(old)} and {dotted(new)} are set, and they are the same field now; "
                f"leave {dotted(old)} out"
            )

    def _prune(self, path: Path) -> None:
        if path and self.get(path) == {}:
            self._take(path)
            self.steps.append(("remove", path, None))
            self._prune(path[:-1])

    def _rename_origins(self, old: Path, new: Path) -> None:
        before, after = dotted(old), dotted(new)
        self.origins = {
            after + key[len(before) :] if within(key, before) else key: entry
            for key, entry in self.origins.items()
        }

    def rename_references(self, old: str, new: str) -> None:
        """Let references to a field name its new path."""

        def renamed(text: str) -> str:
            def name(match: re.Match[str]) -> str:
                word = match.group()
                return new + word[len(old) :] if within(word, old) else word

            return re.sub(REFERENCE, lambda found: re.sub(NAMES, name, found.group()), text)

        for path, text in list(nested(self.data)):
            if isinstance(text, str) and renamed(text) != text:
                self.put(path, renamed(text))
        for entry in self.origins.values():
            for layer in entry["layers"]:
                if isinstance(layer["value"], str):
                    layer["value"] = renamed(layer["value"])


def guessed(value: Any) -> Any:
    """A value with every text without quotes read as YAML's core schema reads it."""
    return guess(value) if isinstance(value, PlainScalar) else rebuild(value, guessed)


def _find(node: Any, pattern: tuple[str, ...], path: Path) -> Iterator[Path]:
    if not pattern:
        yield path
        return
    first, rest = pattern[0], pattern[1:]
    if pattern == ("type",) and isinstance(node, str):
        if node != "null" and "${" not in node:
            yield path  # the section is given by its variant's name alone
    else:
        for key, item in list(children(node)):
            if first in ("*", str(key).replace("-", "_")):
                yield from _find(item, rest, (*path, key))


def _child(node: Any, part: str | int) -> Any:
    found = item_at(node, part)
    return None if found is MISSING else found


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
    return [each for to in range(start + 1, info.schema + 1) for each in table[to]]


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
    found: Any = cast(dict[str, Any], header).get("schema") if isinstance(header, dict) else None
    if type(found) is not int or found < 1:
        raise SetpointError(
            f"{name}: {HEADER} must say which schema this is, as in {HEADER} = {{schema = "
            f"{root.__setpoint__.schema}}}"
        )
    if found > root.__setpoint__.schema:
        raise SetpointError(
            f"{name}: written by schema {found}, this Setpoint reads up to "
            f"{root.__setpoint__.schema}; update Setpoint to load it"
        )
    return found


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
