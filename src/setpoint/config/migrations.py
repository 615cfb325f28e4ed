"""Changes to a root from schema to schema, the records and files they change, hints for old keys.

A migration works on plain data, together with the current config classes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, TypeVar, cast

from .files.file_document import HEADER, FileDocument, FilePosition
from .schema.class_info import classes_at
from .schema.field import IDENTITY, Role
from .values.node import Node
from .values.origin import DERIVED, RECORD
from .values.scalar import Struct
from .words.errors import SetpointError
from .words.names import Path, dotted, within
from .words.plain_data import (
    MISSING,
    PlainScalar,
    children,
    guess,
    item_at,
    listed,
    nested,
    rebuild,
)

Entry = dict[str, Any]
Step = tuple[str, Path, Any]
"""A step of a migration, as it is repeated on the text of a file: ("move", old path, new path),
("put", path, value) or ("remove", path, None)."""
NAMES = r"[A-Za-z_]\w*(?:\.\w+)*"
REFERENCE = r"\$\{[^}]*\}"


class Tree:
    """Data that is being migrated.

    Arguments:
        data: nested plain data; a copy is changed.
        origins: the origins of a record, by dotted path; they follow their values.
        complete: whether every value is present, as in a record; a file may omit any.
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        origins: Mapping[str, Entry] | None = None,
        *,
        complete: bool = False,
    ) -> None:
        self.data: dict[str, Any] = listed(data)
        self.origins: dict[str, Entry] = listed(origins or {})
        self.complete = complete
        self.notes: list[str] = []
        self.steps: list[Step] = []

    def find(self, pattern: str, variant: str | None = None) -> list[Path]:
        """The existing paths that match a pattern, for one variant or with no variant stated.

        In the dotted path `*` matches each item of a list or mapping; hyphens and underscores are
        the same; `x.type` also matches `x = "adamw"`.
        """
        places = _find(self.data, tuple(pattern.split(".")), ())
        return [p for p in places if variant is None or self.variant_of(p) in (variant, None)]

    def get(self, path: Path) -> Any:
        """The value at an existing path."""
        node: Any = self.data
        for part in path:
            node = node[part]
        return node

    def plain(self, path: Path) -> Any:
        """The value at an existing place; unquoted text is read as in YAML."""
        return guessed(self.get(path))

    def variant_of(self, path: Path) -> str | None:
        """The `type` of the section that contains a path."""
        node: Any = self.data
        for part in path[:-1]:
            node = item_at(node, part)
        tag: object = cast(Any, node).get("type") if isinstance(node, dict) else node
        return tag if isinstance(tag, str) else None

    def move(self, old: Path, new: Path) -> None:
        """Move a value to another path, and rename references to it.

        Sections on the way are created, and a section left empty is removed. If a section on the
        way is null, the value is omitted with a note.

        Raises:
            SetpointError: the path already has a value, or a section cannot be created.
        """
        value, text = self.get(old), repr(self.plain(old))
        del self.get(old[:-1])[old[-1]]
        section: Any = self.data
        for depth, part in enumerate(new[:-1], 1):
            inner: Any = item_at(section, part)
            if inner is None or inner == "null":
                self.notes.append(
                    f"{dotted(old)} = {text} is left out: it belongs to {dotted(new[:-1])} now, "
                    f"which is null"
                )
                return self._removed(old)
            if inner is MISSING and isinstance(section, dict):
                inner = section[part] = {}
            elif isinstance(inner, str) and "${" not in inner:
                inner = section[part] = {"extends" if inner.startswith("@") else "type": inner}
            elif not isinstance(inner, list if isinstance(new[depth], int) else dict):
                raise SetpointError(
                    f"{dotted(new)} cannot be moved: {dotted(new[:depth])} is {guessed(inner)!r}; "
                    f"set {dotted(old)} by hand to match the new schema"
                )
            section = cast(Any, inner)
        if isinstance(section, dict) and new[-1] in section:
            raise SetpointError(
                f"both {dotted(old)} and {dotted(new)} are set, and they are the same field now; "
                f"leave {dotted(old)} out"
            )
        section[new[-1]] = value
        self.steps.append(("move", old, new))
        before, after = dotted(old), dotted(new)
        self.origins = {
            after + key[len(before) :] if within(key, before) else key: entry
            for key, entry in self.origins.items()
        }
        self.rename_references(before, after)
        self._prune(old[:-1])

    def put(self, path: Path, value: Any) -> None:
        """Set a value in an existing section, with the last origin if there are any."""
        self.get(path[:-1])[path[-1]] = value
        self.steps.append(("put", path, value))
        entry = self.origins.get(dotted(path))
        if entry is not None:
            entry["value"] = entry["layers"][-1]["value"] = value

    def remove(self, path: Path) -> None:
        """Remove an existing value with its origins; an empty section is also removed."""
        del self.get(path[:-1])[path[-1]]
        self._removed(path)

    def _removed(self, path: Path) -> None:
        self.steps.append(("remove", path, None))
        self.origins = {k: v for k, v in self.origins.items() if not within(k, dotted(path))}
        self._prune(path[:-1])

    def _prune(self, path: Path) -> None:
        if path and self.get(path) == {}:
            self.remove(path)

    def old_path(self, path: Path, count: int | None = None) -> Path:
        """The path of a value before all steps, or before the first `count`."""
        for kind, old, new in reversed(self.steps[:count]):
            if kind == "move" and path[: len(new)] == new:
                path = (*old, *path[len(new) :])
        return path

    def rename_references(self, old: str, new: str) -> None:
        """Rename references to a moved field."""

        def renamed(text: str) -> str:
            def name(match: re.Match[str]) -> str:
                word = match.group()
                return new + word[len(old) :] if within(word, old) else word

            return re.sub(REFERENCE, lambda match: re.sub(NAMES, name, match.group()), text)

        for path, text in list(nested(self.data)):
            if isinstance(text, str) and renamed(text) != text:
                self.put(path, renamed(text))
        for entry in self.origins.values():
            for layer in entry["layers"]:
                if isinstance(layer["value"], str):
                    layer["value"] = renamed(layer["value"])


def guessed(value: Any) -> Any:
    """Read all unquoted text in a value by YAML's core schema."""
    return guess(value) if isinstance(value, PlainScalar) else rebuild(value, guessed)


def _find(node: Any, pattern: tuple[str, ...], path: Path) -> Iterator[Path]:
    if not pattern:
        yield path
    elif pattern == ("type",) and isinstance(node, str):
        if node != "null" and "${" not in node:
            yield path  # the section is only the name of its variant
    else:
        for key, item in list(children(node)):
            if pattern[0] in ("*", str(key).replace("-", "_")):
                yield from _find(item, pattern[1:], (*path, key))


def filled(old: str, new: str, path: Path) -> Path:
    """Replace `*` in a new path with the keys that it matched in the old one."""
    keys = [key for part, key in zip(old.split("."), path, strict=True) if part == "*"]
    return tuple(keys.pop(0) if part == "*" else part for part in new.split("."))


class Operation(Struct):
    """One change between a schema and the next, for one variant (`type`) or for all."""

    schema = 0
    """The schema that the change leads to; set when a migration is registered."""
    old = ""
    """The key that is removed, if any."""
    new = ""
    """The key that replaces it."""
    of = cast("str | None", None)

    def apply(self, tree: Tree) -> None:
        """Make the change.

        Raises:
            SetpointError: a value cannot be migrated.
        """
        raise TypeError(f"{type(self).__name__} does not describe what it does")

    def sentence(self) -> str:
        """The hint for the old key, without its end: `optim was renamed to optimizer in ...`."""
        return f"{self.old} was changed in schema {self.schema}"

    def call(self, function: Callable[[Any], Any], path: Path, value: Any, data: Any) -> Any:
        """Run a function of a migration on arbitrary data.

        Raises:
            SetpointError: the function fails, or the value contains a reference.
        """
        title = f"{dotted(path)} = {value!r}"
        if "${" in str(value):
            raise SetpointError(
                f"{title} holds a reference, whose value cannot be converted to schema "
                f"{self.schema}; change it by hand"
            )
        try:
            return function(data)
        except Exception as error:
            raise SetpointError(
                f"{title} cannot be migrated to schema {self.schema}: "
                f"{type(error).__name__}: {error}; change it by hand"
            ) from error


class Renamed(Operation):
    """A field or section has a new path; `*` in both stands for each item of a list."""

    old: str
    new: str
    of: str | None = None

    def apply(self, tree: Tree) -> None:
        if self.of is None and "*" not in self.old:
            # A file may refer to values that it does not set itself.
            tree.rename_references(self.old, self.new)
        for path in tree.find(self.old, self.of):
            tree.move(path, filled(self.old, self.new, path))

    def sentence(self) -> str:
        same = self.old.rpartition(".")[0] == self.new.rpartition(".")[0]
        verb = "renamed" if same else "moved"
        return f"{self.old} was {verb} to {self.new} in schema {self.schema}"


class Retired(Operation):
    """A field or section was removed.

    Arguments:
        advice: a sentence with the reason or the replacement.
        neutral: the value whose removal changes nothing; any other value is reported.
    """

    old: str
    advice: str
    neutral: object = MISSING
    of: str | None = None

    def apply(self, tree: Tree) -> None:
        for path in reversed(tree.find(self.old, self.of)):
            value = tree.plain(path)
            if value != self.neutral:
                tree.notes.append(
                    f"{dotted(path)} = {value!r} is left out: retired in schema {self.schema}: "
                    f"{self.advice}"
                )
            tree.remove(path)

    def sentence(self) -> str:
        return f"{self.old} was retired in schema {self.schema}: {self.advice}"


class Converted(Operation):
    """A field's value is written differently, such as `what`: `is in tokens, not steps`."""

    path: str
    convert: Callable[[Any], Any]
    what: str
    of: str | None = None

    def apply(self, tree: Tree) -> None:
        for path in tree.find(self.path, self.of):
            before = tree.plain(path)
            value = self.call(self.convert, path, before, before)
            if value == before and type(value) is type(before):
                continue
            tree.put(path, value)
            tree.notes.append(
                f"{dotted(path)}: {before!r} is {value!r} since schema {self.schema}: {self.what}"
            )


class Added(Operation):
    """A field is new; earlier runs effectively had a value, regardless of today's default.

    Arguments:
        value: the value of every run before, in plain data, with all its fields for a section; or a
            function that makes it from the data.
        derived: whether the field is computed from others unless given.
        what: a note for files, in which an omitted field has today's default; required if that
            default differs from the value of earlier runs.
    """

    path: str
    value: Any
    derived: bool = False
    role: Role = IDENTITY
    what: str = ""
    of: str | None = None

    def apply(self, tree: Tree) -> None:
        if not tree.complete:
            if self.what and not tree.find(self.path):
                tree.notes.append(f"{self.path} is new in schema {self.schema}: {self.what}")
            return
        section, _, name = self.path.rpartition(".")
        for above in tree.find(section) if section else [()]:
            path: Path = (*above, name)
            if not isinstance(tree.get(above), dict) or name in tree.get(above):
                continue
            if self.of not in (None, tree.variant_of(path)):
                continue
            value = self.value
            if callable(value):
                value = self.call(value, path, None, tree.data)
            tree.put(path, value)
            layer = DERIVED if self.derived else RECORD
            for leaf, part in _leaves(path, value):
                origin = {"layer": layer, "origin": f"before schema {self.schema}", "value": part}
                tree.origins[dotted(leaf)] = {
                    "value": part,
                    "role": self.role.name,
                    "layers": [origin],
                }


def _leaves(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    """Yield the values that have an origin of their own; for a section, those of its fields."""
    if isinstance(value, dict) and value:
        for name, part in cast(dict[str, Any], value).items():
            yield from _leaves((*path, name), part)
    else:
        yield path, value


_declared: dict[str, dict[int, tuple[Operation, ...]]] = {}

F = TypeVar("F", bound=Callable[[], Iterable[Operation]])


def migration(*, to: int) -> Callable[[F], F]:
    """Declare the changes from one schema to the next, in the module named by the root."""

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
    """All changes to a root since a schema, in order.

    Raises:
        SetpointError: the root's migrations lack a schema, or include a future one.
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
    schemas = set(range(2, info.schema + 1))
    if schemas != table.keys():
        absent = ", ".join(map(str, sorted(schemas - table.keys())))
        extra = ", ".join(map(str, sorted(table.keys() - schemas)))
        source = info.migrations or "no module of migrations is named"
        reason = f"there is none to {absent}" if absent else f"there is one to {extra} already"
        raise SetpointError(
            f"{root.__name__} is of schema {info.schema}, but its chain of migrations is not "
            f"complete: {reason} ({source})"
        )
    return [change for to in range(start + 1, info.schema + 1) for change in table[to]]


def schema_of(root: type[Node], data: Mapping[str, Any], name: str) -> int | None:
    """The schema stated by a record or file; None without the header.

    Raises:
        SetpointError: the header is malformed, or its schema is newer than this software.
    """
    if HEADER not in data:
        return None
    header: Any = guessed(data[HEADER])
    schema: Any = cast(dict[str, Any], header).get("schema") if isinstance(header, dict) else None
    if type(schema) is not int or schema < 1:
        raise SetpointError(
            f"{name}: {HEADER} must name its schema, as in {HEADER} = {{schema = "
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
    """Migrate plain data to the current schema; `origins` of a record, None for a file.

    Raises:
        SetpointError: a value cannot be migrated.
    """
    tree = Tree(data, origins, complete=origins is not None)
    for operation in chain(root, start):
        try:
            operation.apply(tree)
        except SetpointError as error:
            source = f"{name} (schema {start}): " if name else ""
            raise SetpointError(f"{source}{error}") from error
    return tree


def migrated(
    root: type[Node], document: FileDocument, place: Path = ()
) -> tuple[FileDocument, list[str]]:
    """Migrate a file to the current schema.

    Arguments:
        document: the file; without the header `setpoint = {schema = N}` it is returned unchanged.
        place: the section whose fields a fragment sets; the empty path for a whole file.

    Returns:
        the document itself, or a changed one with the positions of the old keys; and the changes,
        as sentences.

    Raises:
        SetpointError: the header is malformed or of a newer schema, or a value cannot be migrated.
    """
    schema = schema_of(root, document.data, document.name)
    if schema is None or schema == root.__setpoint__.schema:
        return document, []
    header = document.data[HEADER]
    data: dict[str, Any] = {key: value for key, value in document.data.items() if key != HEADER}
    for part in reversed(place):
        data = {str(part): data}
    tree = migrate(root, data, schema, name=document.name)
    changed: Any = tree.data
    for part in place:
        if set(changed) != {str(part)}:
            raise SetpointError(
                f"{document.name}: not all of its fields of schema {schema} are still in "
                f"{dotted(place)}; update it by hand, with schema = {root.__setpoint__.schema}"
            )
        changed = changed[str(part)]
    notes = [f"{document.name} (schema {schema}): {note}" for note in tree.notes]

    def old_path(path: Path) -> Path:
        return tree.old_path((*map(str, place), *path))[len(place) :]

    return MigratedDocument(document, {HEADER: header, **changed}, old_path), notes


class MigratedDocument(FileDocument):
    """A document with other data, whose values still have their original positions."""

    __slots__ = ("_document", "_old_path")

    def __init__(
        self, document: FileDocument, data: dict[str, Any], old_path: Callable[[Path], Path]
    ) -> None:
        super().__init__(
            document.name, document.format, data, document.text, lambda: FilePosition(0)
        )
        self._document = document
        self._old_path = old_path

    def locate(self, path: Path) -> tuple[int, int] | None:
        return self._document.locate(self._old_path(path))


def hint_for_key(root: type[Node], path: str, file: str | None = None) -> str:
    """The hint for an unknown key of an older schema.

    Arguments:
        file: the file that contains it; None for flags, variables and Python.

    Returns:
        the sentence; the empty string if no schema had the key.
    """
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
    else:  # the fields of the section may have moved individually
        inside = [o for o in operations if o.old.startswith(f"{now}.")]
        if not inside:
            return ""
        sentence, now = f"{path} is not a section since schema {inside[-1].schema}", ""
    if file is not None:
        return f"{sentence}; run {root.__setpoint__.command(f'migrate {file}')}."
    return f"{sentence}; write {now}." if now else f"{sentence.rstrip('.')}."


def oldest_schema(root: type[Node], data: Mapping[str, Any]) -> int | None:
    """The latest schema of data without a header, by the first of its keys to be removed."""
    tree = Tree(data)
    for operation in chain(root):
        places = tree.find(operation.old, operation.of) if operation.old else []
        if any(not _exists(root, place) for place in places):
            return operation.schema - 1
    return None


def _last_change(operations: Iterable[Operation], path: str) -> Operation | None:
    """The last change that removed a key, or its section."""
    words = path.split(".")
    match = None
    for operation in operations:
        old = operation.old.split(".")
        pairs = zip(old, words, strict=False)
        if len(old) <= len(words) and all(part in ("*", word) for part, word in pairs):
            match = operation
    return match


def _exists(root: type[Node], path: Path) -> bool:
    """True if a path currently names a field, in any variant."""
    return any(
        str(path[-1]).replace("-", "_") in cls.__setpoint__.fields
        for cls in classes_at(root, path[:-1])
    )
