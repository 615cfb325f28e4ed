"""What the files of a record say in terms of today's schema, and whether they are as written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from ..files.document import Document
from ..files.read import read_file
from ..files.read import read_file as read
from ..migrations.chain import HEADER, migrate, schema_of
from ..schema.bounds import BUDGET, IDENTITY, RUNTIME
from ..values.node import Node
from ..words.errors import SetpointError
from ..words.names import Path
from ..words.shown import children
from .fingerprint import canonical_json, sha256

CONFIG = "config.json"
ORIGINS = "origins.json"
NEW_ORIGINS = "origins.new.json"
ROLES = {role.name: role for role in (IDENTITY, BUDGET, RUNTIME)}
# Marks an identity value that is no part of the fingerprint: its field was added later, and holds
# what every run had before.
AS_BEFORE = "as_before"
# Paths and values that stand in the fingerprint for a value whose field was renamed.
FORMERLY = "formerly"
"""The origins of a `config.json` that was replaced last, until they take the place of the old ones.

A process that is killed between the two leaves the old `origins.json`, and this beside it.
"""


def is_record(path: str) -> bool:
    """Whether a path is a folder with a recorded config.

    Returns:
        True if `config.json` lies in it.
    """
    return os.path.isfile(os.path.join(path, CONFIG))


def recorded_schema(folder: str) -> int | None:
    """The schema that a record says it is of.

    Raises:
        SetpointError: if there is a record and it cannot be read.
    """
    if not is_record(folder):
        return None
    schema = _header(read_file(os.path.join(folder, CONFIG))).get("schema")
    return schema if isinstance(schema, int) else None


def backup_name(name: str, schema: int) -> str:
    """What a file of a record of an older schema is called once there is a newer one.

    Returns:
        for instance `config.schema-1.json`.
    """
    stem, suffix = os.path.splitext(name)
    return f"{stem}.schema-{schema}{suffix}"


class Record:
    """What a record says, in terms of today's schema.

    Arguments:
        values: of `config.json`, without the header.
        origins: of `origins.json`.
        find: finds `file:line` for a path.
    """

    __slots__ = ("find", "header", "notes", "origins", "values")

    def __init__(
        self,
        values: dict[str, Any],
        header: dict[str, Any],
        origins: dict[str, dict[str, Any]],
        notes: list[str],
        find: Callable[[Path], str],
    ) -> None:
        self.values = values
        self.header = header
        self.origins = origins
        self.notes = notes
        self.find = find


def load_record(root: type[Node], folder: str) -> Record:
    """Read a record, and take it to today's schema if it is of an older one.

    Arguments:
        folder: a folder with `config.json` and `origins.json`.

    Returns:
        the record; the files are not changed.

    Raises:
        SetpointError: if the folder holds no record, one that cannot be read, or one of a newer
            schema.
    """
    if not is_record(folder):
        raise SetpointError(f"{folder} is not a run directory: it has no {CONFIG}")
    document = read_file(os.path.join(folder, CONFIG))
    values = {key: value for key, value in document.data.items() if key != HEADER}
    header = _header(document)
    today, schema = root.__setpoint__.schema, header.get("schema")
    if schema == today:
        origins = _origins_of(folder, values, header)
        return Record(values, header, origins, [], _finder(document, None))

    start = schema_of(root, document.data, document.name)
    if start is None:
        raise SetpointError(f"{document.name}: this is not a record: it has no {HEADER!r}")
    origins = _origins_of(folder, values, header)
    tree = migrate(root, values, start, origins, folder)
    notes = [f"{folder} (schema {start}): {note}" for note in tree.notes]
    return Record(tree.data, header, tree.origins, notes, _finder(document, tree.old_path))


def _header(document: Document) -> dict[str, Any]:
    header: Any = document.data.get(HEADER)
    return cast(dict[str, Any], header) if isinstance(header, dict) else {}


def _origins_of(
    folder: str, values: dict[str, Any], header: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """The origins that belong to the values: those that were there, or the new ones."""
    try:
        return _checked(os.path.join(folder, ORIGINS), folder, values, header)
    except SetpointError:
        waiting = os.path.join(folder, NEW_ORIGINS)
        if not os.path.isfile(waiting):
            raise
        return _checked(waiting, folder, values, header)


def _checked(
    name: str, folder: str, values: dict[str, Any], header: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    origins = _read_origins(name)
    check_integrity(folder, values, header, origins)
    return origins


def take_new_origins(folder: str) -> None:
    """Finish what a process left that was killed while it replaced a record.

    Raises:
        OSError: if the folder cannot be written.
    """
    waiting = os.path.join(folder, NEW_ORIGINS)
    if not os.path.isfile(waiting):
        return
    try:
        document = read(os.path.join(folder, CONFIG))
        values = {key: value for key, value in document.data.items() if key != HEADER}
        _checked(waiting, folder, values, _header(document))
    except SetpointError:
        return  # config.json has not been replaced, and belongs to origins.json
    os.replace(waiting, os.path.join(folder, ORIGINS))


def _read_origins(name: str) -> dict[str, dict[str, Any]]:
    chains: Any = read_file(name).data
    try:
        for entry in chains.values():
            _ = entry["value"], ROLES[entry["role"]], entry["layers"][-1]
            for layer in entry["layers"]:
                _ = layer["layer"], layer["origin"], layer["value"]
    except (LookupError, TypeError, AttributeError):
        raise SetpointError(f"{name}: these are not the origins of a record") from None
    return chains


def _finder(document: Document, old_path: Callable[[Path], Path] | None) -> Callable[[Path], str]:
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

    Nothing of today's code takes part: what was recorded is compared with what was recorded.

    Arguments:
        values: of `config.json`, without the header.
        header: of `config.json`.
        origins: of `origins.json`.

    Raises:
        SetpointError: naming the first value that is not the same in both files, or both
            fingerprints.
    """
    here = dict(_leaves(values, "", origins))
    for key in [*origins, *here]:
        one = _shown(here[key]) if key in here else "nothing"
        other = _shown(origins[key]["value"]) if key in origins else "nothing"
        if one != other:
            raise _changed(folder, f"{key} is {one} in config.json and {other} in origins.json")
    stated, found = header.get("fingerprint"), recorded_fingerprint(origins)
    if stated != found:
        raise _changed(folder, f"it states the fingerprint {stated}, and its values have {found}")


def recorded_fingerprint(origins: Mapping[str, Mapping[str, Any]]) -> str:
    """The fingerprint of the values in `origins.json`."""
    values: dict[str, Any] = {}
    for key, entry in origins.items():
        if entry["role"] == IDENTITY.name and not entry.get(AS_BEFORE):
            values.update(entry.get(FORMERLY) or {key: entry["value"]})
    return sha256(canonical_json(values).encode("ascii"))


def _leaves(value: Any, key: str, origins: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The values of `config.json` by the keys that `origins.json` has for them."""
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


def _changed(folder: str, what: str) -> SetpointError:
    return SetpointError(
        f"{folder}: the record was changed after it was written: {what}. A record says what a run "
        f"was; to start from changed values, give {folder}/config.json as a file"
    )
