"""A resolved config as a record on disk, reading it back, the fingerprint, and differences."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from ..draft.walk import (
    Leaf,
    entries_of,
    field_at,
    is_default,
    leaves,
    need_config,
    sections,
    to_minimal,
    to_plain,
    value_at,
)
from ..files.file_document import HEADER, FileDocument
from ..files.read import read_file
from ..layers.editor import Editor
from ..layers.presets import load_plugins
from ..schema.field import BUDGET, IDENTITY, RUNTIME, FieldInfo, Role
from ..values.containers import Free
from ..values.node import Chain, Node, is_frozen, set_chain, state_of
from ..values.origin import DEFAULT, DERIVED, RECORD, REFERENCE, Origin, Recorded
from ..values.reference import may_refer
from ..values.user_code import importable_name
from ..words.errors import ConfigError, Invalid, Problem, SetpointError
from ..words.names import Path, within
from ..words.plain_data import children, plain, same
from ..words.text import for_error

C = TypeVar("C", bound=Node)
CONFIG = "config.json"
ORIGINS = "origins.json"
# The origins of a replaced `config.json`, until they replace the old ones. A process killed in
# between leaves the old `origins.json` and this file.
NEW_ORIGINS = "origins.new.json"
MINIMAL = "config.toml"
ROLES = {role.name: role for role in (IDENTITY, BUDGET, RUNTIME)}


def record_files(config: Node) -> dict[str, str]:
    """The texts of the three files that record a config, by name.

    `config.json` is complete; `origins.json` lists every layer that set each value, the winner
    last; `config.toml` contains the differences from the defaults, with origins as comments.
    """
    from ..files.write import write_json

    need_config(config, "record_files", resolved=True)
    # The modules of config classes; if one is missing, the error says what to import.
    modules = {importable_name(type(section).__module__) for _, section in sections(config)}
    header = {
        "schema": type(config).__setpoint__.schema,
        "fingerprint": fingerprint(config),
        "modules": sorted(name for name in modules if name.partition(".")[0] != "setpoint"),
    }
    chains: dict[str, object] = {}
    for leaf in leaves(config):
        entry: dict[str, object] = {
            "value": plain(leaf.value),
            "role": leaf.role.name,
            "layers": _layers(leaf),
        }
        entries = entries_of(config, leaf)
        if entries:
            entry["entries"] = {str(item.path[-1]): _layers(item) for item in entries}
        chains[leaf.key] = entry
    return {
        CONFIG: write_json({HEADER: header, **to_plain(config, replace_mappings=True)}),
        ORIGINS: write_json(chains),
        MINIMAL: f"{HEADER} = {{schema = {header['schema']}}}\n\n{minimal_toml(config)}",
    }


def minimal_toml(config: Node) -> str:
    """Only the differences from the defaults, each line with its origin as a comment."""
    from ..files.write import write_toml

    touched = (leaf for leaf in leaves(config) if leaf.chain)
    comments = {
        entry.path: entry.describe_origin()
        if entry.origin.layer != REFERENCE or len(entry.chain) < 2
        else f"= {for_error(entry.value)}, {entry.chain[-2][0].describe(entry.path)}"
        for leaf in touched
        for entry in entries_of(config, leaf) or [leaf]
    }
    return write_toml(to_minimal(config), comments)


def read_record(root: type[C], folder: str) -> tuple[C, dict[str, Any]]:
    """The draft described by a record, with derived values to be derived again.

    Every recorded value is kept with its origins, even if today's default differs: a record
    describes the run as it was. A record of an older schema is migrated in memory.

    Returns:
        the draft, and the record's header (`schema`, `fingerprint`) with `notes`: the changes to a
        record of an older schema, as sentences.

    Raises:
        SetpointError: the folder has no record, or one that cannot be read.
        ConfigError: today's classes cannot accept the recorded values.
    """
    record = load_record(root, folder)
    recorded = record.origins
    editor = _merged(root, record, folder)
    failures: list[SetpointError] = []
    # Records do not import the installed plugins, which may know the refused values.
    if editor.problems and load_plugins(failures):
        editor = _merged(root, record, folder)
    draft = cast(C, editor.root)
    if editor.problems:
        if not failures:
            require_modules(record, folder)
        raise ConfigError([*editor.problems, *(Problem("", str(error)) for error in failures)])
    for leaf in list(leaves(draft)):
        if leaf.chain and leaf.key in recorded:
            info = field_at(draft, leaf.path)
            chain = _chain(recorded[leaf.key]["layers"], leaf.chain[-1][1], info)
            _put_chain(draft, leaf.path, chain)
    return draft, {**record.header, "notes": record.notes}


def require_modules(record: Record, folder: str) -> None:
    """Refuse a record with config classes from modules that are not imported.

    Raises:
        SetpointError: names the modules.
    """
    modules: Any = record.header.get("modules")
    names = [str(name) for name in cast(list[Any], modules if isinstance(modules, list) else [])]
    # The output may be pasted into a shell, so it must contain only names.
    valid_names = [name for name in names if all(map(str.isidentifier, name.split(".")))]
    if "__main__" in names and not _script_declares(Node):
        raise SetpointError(
            f"{folder}: the record uses config classes that a script or notebook defined itself; "
            f"no other process can import them. Move them into a module."
        )
    missing = [name for name in valid_names if name not in sys.modules]
    if missing:
        raise SetpointError(
            f"{folder}: the record uses config classes of {', '.join(missing)}; records are data "
            f"and import nothing, so name what is to be imported: --import "
            f"{' --import '.join(missing)} (in Python: import {', '.join(missing)})"
        )


def _script_declares(cls: type[Node]) -> bool:
    return any(
        kind.__module__ == "__main__" or _script_declares(kind) for kind in cls.__subclasses__()
    )


def _merged(root: type[Node], record: Record, folder: str) -> Editor:
    """Copy the recorded values, except derived ones, into a new draft."""
    layers = {key: entry["layers"][-1]["layer"] for key, entry in record.origins.items()}
    derived = {key for key, layer in layers.items() if layer == DERIVED}
    editor = Editor(root(), replace_mappings=True)
    editor.merge(_without(record.values, derived), Origin(RECORD, folder, record.find))
    return editor


def _layers(leaf: Leaf) -> list[dict[str, object]]:
    """The recorded layers of a value; the last one contains the value itself."""
    layers: list[dict[str, object]] = [
        {"layer": origin.layer, "origin": origin.describe(leaf.path), "value": plain(value)}
        for origin, value in leaf.chain
    ] or [{"layer": DEFAULT, "origin": DEFAULT}]
    layers[-1]["value"] = plain(leaf.value)
    return layers


def _put_chain(root: Node, path: Path, chain: Chain) -> None:
    """Set the recorded layers of a field, or of a key in a free area."""
    node: Any = root
    holder: tuple[Node, str] | None = None
    for index, part in enumerate(path):
        if isinstance(node, Free):
            if index + 1 == len(path):
                node.chain(str(part))[:] = chain
                return
        elif isinstance(node, Node) and part in type(node).__setpoint__.fields:
            holder = node, str(part)
        elif isinstance(node, Node) and holder is not None and value_at(*holder) is not node:
            state_of(node).placed = chain  # the `type` of an item
        node = value_at(node, part)
    if holder is not None:
        set_chain(*holder, chain)


def _chain(layers: Sequence[Mapping[str, Any]], value: object, info: FieldInfo | None) -> Chain:
    """The earlier layers of a value, with the value itself last."""
    chain: Chain = [(Recorded(str(e["layer"]), str(e["origin"])), e["value"]) for e in layers]
    last = chain[-1][0]
    chain[-1] = (last, value)
    if last.layer == REFERENCE:
        # Computed again, like a derived value, from the original references.
        try:
            given = info.read(chain[-2][1], last) if info is not None and len(chain) > 1 else None
        except Invalid:
            given = None
        if may_refer(given):
            chain[-2] = (chain[-2][0], given)
        else:
            chain[-1] = (Recorded(RECORD, last.describe(())), value)
    return chain


def _without(value: Any, derived: set[str], prefix: str = "") -> Any:
    """Plain data without the values at some dotted paths."""
    if not isinstance(value, dict | list):
        return value
    inner = {
        key: _without(item, derived, f"{prefix}{key}.")
        for key, item in children(cast(object, value))
        if f"{prefix}{key}" not in derived
    }
    return inner if isinstance(value, dict) else list(inner.values())


def is_record(path: str) -> bool:
    """True if a path is a folder with a recorded config."""
    return os.path.isfile(os.path.join(path, CONFIG))


def recorded_schema(folder: str) -> int | None:
    """The schema stated by a record.

    Raises:
        SetpointError: the record exists, but cannot be read.
    """
    if not is_record(folder):
        return None
    schema = _header(read_file(os.path.join(folder, CONFIG))).get("schema")
    return schema if isinstance(schema, int) else None


def backup_name(name: str, schema: int) -> str:
    """Name for the backup of a record's file: `config.schema-1.json`."""
    stem, suffix = os.path.splitext(name)
    return f"{stem}.schema-{schema}{suffix}"


class Record(NamedTuple):
    """The content of a record, in terms of today's schema; `find` finds `file:line` for a path."""

    values: dict[str, Any]
    header: dict[str, Any]
    origins: dict[str, dict[str, Any]]
    notes: list[str]
    find: Callable[[Path], str]


def load_record(root: type[Node], folder: str) -> Record:
    """Read a record, migrated to today's schema; no file is changed.

    Raises:
        SetpointError: the folder has no record, one that cannot be read, or one of a newer schema.
    """
    if not is_record(folder):
        raise SetpointError(f"{folder} is not a run directory: it has no {CONFIG}")
    document = read_file(os.path.join(folder, CONFIG))
    values = {key: value for key, value in document.data.items() if key != HEADER}
    header = _header(document)
    current, schema = root.__setpoint__.schema, header.get("schema")
    if schema == current:
        origins = _origins_of(folder, values, header)
        return Record(values, header, origins, [], _finder(document, None))
    from ..migrations import migrate, schema_of

    start = schema_of(root, document.data, document.name)
    if start is None:
        raise SetpointError(f"{document.name}: this is not a record: it has no {HEADER!r}")
    origins = _origins_of(folder, values, header)
    tree = migrate(root, values, start, origins, folder)
    notes = [f"{folder} (schema {start}): {note}" for note in tree.notes]
    return Record(tree.data, header, tree.origins, notes, _finder(document, tree.old_path))


def _header(document: FileDocument) -> dict[str, Any]:
    header: Any = document.data.get(HEADER)
    return cast(dict[str, Any], header) if isinstance(header, dict) else {}


def _origins_of(
    folder: str, values: dict[str, Any], header: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """The origins that match the values: the existing ones or the new ones."""
    try:
        return _checked(os.path.join(folder, ORIGINS), folder, values, header)
    except SetpointError:
        new_origins = os.path.join(folder, NEW_ORIGINS)
        if not os.path.isfile(new_origins):
            raise
        return _checked(new_origins, folder, values, header)


def _checked(
    name: str, folder: str, values: dict[str, Any], header: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    origins = _read_origins(name)
    check_integrity(folder, values, header, origins)
    return origins


def take_new_origins(folder: str) -> None:
    """Complete the replacement of a record that a killed process left unfinished.

    Raises:
        OSError: the folder cannot be written.
    """
    new_origins = os.path.join(folder, NEW_ORIGINS)
    if not os.path.isfile(new_origins):
        return
    try:
        document = read_file(os.path.join(folder, CONFIG))
        values = {key: value for key, value in document.data.items() if key != HEADER}
        _checked(new_origins, folder, values, _header(document))
    except SetpointError:
        return  # config.json was not replaced and matches origins.json
    os.replace(new_origins, os.path.join(folder, ORIGINS))


def _read_origins(name: str) -> dict[str, dict[str, Any]]:
    folder = os.path.dirname(name)
    note = "which says where each value came from"
    if not os.path.exists(name):
        raise SetpointError(
            f"{name} is missing, {note}; the record is incomplete without it. Take the file from "
            f"a copy of {folder}"
        )
    try:
        chains: Any = read_file(name).data
    except SetpointError as error:
        raise SetpointError(
            f"{name} is damaged, {note}. Take the file from a copy of {folder}\n  {error}"
        ) from None
    try:
        for entry in chains.values():
            _ = entry["value"], ROLES[entry["role"]], entry["layers"][-1]
            for layer in entry["layers"]:
                _ = layer["layer"], layer["origin"], layer["value"]
    except (LookupError, TypeError, AttributeError):
        raise SetpointError(f"{name}: these are not the origins of a record") from None
    return chains


def _finder(
    document: FileDocument, old_path: Callable[[Path], Path] | None
) -> Callable[[Path], str]:
    def find(path: Path) -> str:
        place = document.locate(old_path(path) if old_path else path)
        return f"{document.name}:{place[0]}" if place else document.name

    return find


def check_integrity(
    folder: str,
    values: Mapping[str, Any],
    header: Mapping[str, Any],
    origins: Mapping[str, Mapping[str, Any]],
) -> None:
    """Refuse a record that was changed after it was written.

    Only recorded values are compared with each other, independent of today's code.

    Raises:
        SetpointError: names the first value that differs between the two files, or both
            fingerprints.
    """
    recorded = dict(_leaves(values, "", origins))
    for key in [*origins, *recorded]:
        value = _shown(recorded[key]) if key in recorded else "missing"
        other = _shown(origins[key]["value"]) if key in origins else "missing"
        if value != other:
            raise _changed(folder, f"{key} is {value} in config.json and {other} in origins.json")
    given, actual = header.get("fingerprint"), recorded_fingerprint(origins)
    if given != actual:
        stated = given or "(empty)"
        raise _changed(folder, f"it states the fingerprint {stated}, but its values give {actual}")


def recorded_fingerprint(origins: Mapping[str, Mapping[str, Any]]) -> str:
    """The fingerprint of the values in `origins.json`."""
    values = {
        key: entry["value"] for key, entry in origins.items() if entry["role"] == IDENTITY.name
    }
    return digest(canonical_json(values))


def _leaves(value: Any, key: str, origins: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The values of `config.json`, under the keys that `origins.json` uses for them."""
    if key and key in origins:
        yield key, value
    elif isinstance(value, dict | list):
        for name, item in children(cast(object, value)):
            yield from _leaves(item, f"{key}.{name}" if key else str(name), origins)
    else:
        yield key, value


def _shown(value: Any) -> str:
    # As JSON, true is not 1 and 1 is not 1.0.
    import json

    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _changed(folder: str, note: str) -> SetpointError:
    return SetpointError(
        f"{folder}: the record was changed after it was written: {note}. A record describes a "
        f"past run; to start from changed values, give {folder}/config.json as a file"
    )


SHORT = 8


def identity_leaves(config: Node) -> list[Leaf]:
    """The values that the fingerprint hashes."""
    return [leaf for leaf in leaves(config) if leaf.role is IDENTITY]


def canonical(config: Node) -> str:
    """The text that the fingerprint hashes: JSON with sorted keys, no spaces, ASCII only."""
    return canonical_json({leaf.key: plain(leaf.value) for leaf in identity_leaves(config)})


def canonical_json(values: Mapping[str, object]) -> str:
    """The canonical form of values, by dotted path."""
    import json  # not needed without a fingerprint

    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def fingerprint(config: Node) -> str:
    """SHA-256 over the canonical form, in hexadecimal digits; names of runs use the first eight.

    Raises:
        SetpointError: the config is a draft, whose values are not determined yet.
    """
    need_config(config, "fingerprint")
    if not is_frozen(config):
        raise SetpointError("only a resolved configuration has a fingerprint; resolve the draft")
    state = state_of(config)
    if state.fingerprint is None:
        state.fingerprint = digest(canonical(config))
    return state.fingerprint


def digest(text: str) -> str:
    """SHA-256 of a canonical form."""
    import hashlib  # not needed without a fingerprint

    return hashlib.sha256(text.encode("ascii")).hexdigest()


class Absent:
    """The type of `ABSENT`, which stands for a field missing on one side."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "(absent)"


ABSENT = Absent()


class Entry(NamedTuple):
    """One value in a table."""

    value: Any
    origin: str
    role: Role


NOTHING = Entry(ABSENT, "", IDENTITY)
Table = dict[str, Entry]


class Difference(NamedTuple):
    """A field in which tables differ, with the entry from each; None where it is absent."""

    path: str
    entries: tuple[Entry | None, ...]
    role: Role

    @property
    def left(self) -> Any:
        """The left value, or `ABSENT`."""
        return (self.entries[0] or NOTHING).value

    @property
    def right(self) -> Any:
        """The right value, or `ABSENT`."""
        return (self.entries[1] or NOTHING).value

    @property
    def left_origin(self) -> str:
        """The origin of the left value."""
        return (self.entries[0] or NOTHING).origin

    @property
    def right_origin(self) -> str:
        """The origin of the right value."""
        return (self.entries[1] or NOTHING).origin

    def __str__(self) -> str:
        left, right = (
            repr(value) + (f" ({origin})" if origin else "")
            for value, origin in ((self.left, self.left_origin), (self.right, self.right_origin))
        )
        return f"{self.path}: {left} -> {right}"

    def __repr__(self) -> str:
        return f"Difference({self.path!r}, {self.left!r}, {self.right!r})"

    def to_json(self) -> dict[str, object]:
        """The difference as JSON; an absent side has no value key."""
        result: dict[str, object] = {"path": self.path, "role": self.role.name}
        for side, entry in zip(("left", "right"), self.entries, strict=True):
            if entry is not None:
                result |= {side: entry.value, f"{side}_origin": entry.origin}
        return result


def leaf_table(config: Node) -> Table:
    """The table of a config."""
    return {
        leaf.key: Entry(leaf.value, leaf.describe_origin(), leaf.role) for leaf in leaves(config)
    }


def recorded_table(root: type[Node], folder: str) -> tuple[Table, list[str]]:
    """The table of a record as written, independent of today's classes.

    Raises:
        SetpointError: the record cannot be read.
    """
    record = load_record(root, folder)
    table = {
        path: Entry(entry["value"], str(entry["layers"][-1]["origin"]), ROLES[entry["role"]])
        for path, entry in record.origins.items()
    }
    return table, record.notes


def compare(
    tables: Sequence[Table], roles: Iterable[Role] | None = None, ignore: Iterable[str] = ()
) -> list[Difference]:
    """Compare tables, and return only the differences."""
    kept_roles = None if roles is None else set(roles)
    ignored = tuple(ignore)
    result: list[Difference] = []
    for path in _paths(tables):
        if any(within(path, section) for section in ignored):
            continue
        entries = [table.get(path) for table in tables]
        present = [entry for entry in entries if entry is not None]
        if kept_roles is not None and not any(entry.role in kept_roles for entry in present):
            continue
        first = plain(present[0].value)
        if len(present) < len(tables) or not all(
            same(first, plain(entry.value)) for entry in present[1:]
        ):
            result.append(Difference(path, tuple(entries), present[0].role))
    return result


def _paths(tables: Sequence[Table]) -> list[str]:
    """All paths in the order of the first table, with those of others in between."""
    order = list(tables[0])
    for table in tables[1:]:
        known = set(order)
        inserted: dict[str, list[str]] = {}
        pending: list[str] = []
        for path in table:
            if path in known:
                inserted[path], pending = pending, []
            else:
                pending.append(path)
        order = [new for path in order for new in (*inserted.get(path, ()), path)] + pending
    return order


def differences(left: Node, right: Node, roles: Sequence[Role] | None = None) -> list[Difference]:
    """Compare two resolved configs value by value, or only values with one of some roles."""
    need_config(left, "differences", resolved=True)
    need_config(right, "differences", resolved=True)
    return compare([leaf_table(left), leaf_table(right)], roles)


class RecordChanges(NamedTuple):
    """A current config compared with a record.

    Arguments:
        changed: the differences, with the record on the left, under current roles.
        added: fields that are newer than the record, at their defaults. Such a default is what runs
            did before; if not, `Added` gives the record the former value.
        notes: the changes to a record of an older schema, as sentences.
    """

    changed: list[Difference]
    added: list[Difference]
    notes: list[str]


def changes_since_record(folder: str, config: Node) -> RecordChanges:
    """Compare a record with a current config.

    The recorded values are compared, not values recomputed by current defaults and derivations, so
    a changed derivation appears as a difference, too.

    Raises:
        SetpointError: the record cannot be read.
    """
    recorded, notes = recorded_table(type(config), folder)
    by_key = {leaf.key: leaf for leaf in leaves(config)}
    current = {
        key: Entry(plain(leaf.value), leaf.describe_origin(), leaf.role)
        for key, leaf in by_key.items()
    }
    changed: list[Difference] = []
    added: list[Difference] = []
    for difference in compare([recorded, current]):
        difference = difference._replace(role=current.get(difference.path, difference).role)
        leaf = by_key.get(difference.path)
        is_new = (
            leaf is not None and _is_newer(leaf.key, recorded, current) and is_default(config, leaf)
        )
        (added if is_new else changed).append(difference)
    return RecordChanges(changed, added, notes)


def recorded_differences(folder: str, config: Node) -> list[Difference]:
    """Differences between a record and a current config; see `RecordChanges.changed`."""
    return changes_since_record(folder, config).changed


def _is_newer(path: str, recorded: Table, current: Table) -> bool:
    """True if a record has the section of a field, of the same variant, but not the field."""
    if path in recorded:
        return False
    section, _, name = path.rpartition(".")
    while section and not any(within(key, section) for key in recorded):
        if name.isdecimal():  # an item of a list
            return False
        section, _, name = section.rpartition(".")
    tag = f"{section}.type"
    is_null = section in recorded
    is_same = tag not in recorded or same(recorded[tag].value, current.get(tag, NOTHING).value)
    return not name.isdecimal() and not is_null and is_same
