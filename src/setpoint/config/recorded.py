"""What the files of a record say, in terms of today's schema."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, cast

from .base import Config
from .errors import SetpointError
from .files.document import Document
from .integrity import check_integrity
from .origin import Path
from .role import BUDGET, IDENTITY, RUNTIME

CONFIG = "config.json"
ORIGINS = "origins.json"
NEW_ORIGINS = "origins.new.json"
"""The origins of a `config.json` that was replaced last, until they take the place of the old ones.

A process that is killed between the two leaves the old `origins.json`, and this beside it.
"""
HEADER = "setpoint"
ROLES = {role.name: role for role in (IDENTITY, BUDGET, RUNTIME)}


def is_record(path: str) -> bool:
    """Whether a path is a folder with a recorded config.

    Arguments:
        path: any path.

    Returns:
        True if `config.json` lies in it.
    """
    return os.path.isfile(os.path.join(path, CONFIG))


def recorded_schema(folder: str) -> int | None:
    """The schema that a record says it is of.

    Arguments:
        folder: any folder.

    Returns:
        the schema; None where there is no record that says it.

    Raises:
        SetpointError: if there is a record and it cannot be read.
    """
    from .files.read import read

    if not is_record(folder):
        return None
    schema = _header(read(os.path.join(folder, CONFIG))).get("schema")
    return schema if isinstance(schema, int) else None


def backup_name(name: str, schema: int) -> str:
    """What a file of a record of an older schema is called once there is a newer one.

    Arguments:
        name: the file.
        schema: that it is of.

    Returns:
        for instance `config.schema-1.json`.
    """
    stem, suffix = os.path.splitext(name)
    return f"{stem}.schema-{schema}{suffix}"


class Record:
    """What a record says, in terms of today's schema.

    Arguments:
        values: of `config.json`, without the header.
        header: as it was written.
        origins: of `origins.json`.
        notes: what has changed since the record's schema, in words.
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


def load_record(root: type[Config], folder: str) -> Record:
    """Read a record, and take it to today's schema if it is of an older one.

    Arguments:
        root: the class of the configuration.
        folder: a folder with `config.json` and `origins.json`.

    Returns:
        the record; the files are not changed.

    Raises:
        SetpointError: if the folder holds no record, one that cannot be read, or one of a newer
            schema.
    """
    from .files.read import read

    if not is_record(folder):
        raise SetpointError(f"{folder} is not a run directory: it has no {CONFIG}")
    document = read(os.path.join(folder, CONFIG))
    values = {key: value for key, value in document.data.items() if key != HEADER}
    header = _header(document)
    today, schema = root.__setpoint__.schema, header.get("schema")
    if schema == today:
        origins = _origins_of(folder, values, header)
        return Record(values, header, origins, [], _finder(document, None))
    from .migrate.chain import migrate, schema_of

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

    Arguments:
        folder: of the record, to which no other process writes.

    Raises:
        OSError: if the folder cannot be written.
    """
    from .files.read import read

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
    from .files.read import read

    chains: Any = read(name).data
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
