"""A resolved config as a record on disk, and the way back from it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar, cast

from .base import Chain, Config
from .difference import ABSENT, Difference, same
from .edit import Editor
from .errors import SetpointError
from .files.document import Document
from .fingerprint import fingerprint, json_value
from .origin import DEFAULT, DERIVED, RECORD, REFERENCE, Origin, Path, Recorded
from .plain import to_minimal, to_plain
from .problem import ConfigError
from .reference import Reference
from .role import BUDGET, IDENTITY, RUNTIME
from .walk import Leaf, leaves, sections

C = TypeVar("C", bound=Config)
SCHEMA_VERSION = 1
CONFIG = "config.json"
ORIGINS = "origins.json"
MINIMAL = "config.toml"
HEADER = "setpoint"
ROLES = {role.name: role for role in (IDENTITY, BUDGET, RUNTIME)}


def record_files(config: Config) -> dict[str, str]:
    """The three files that record a config.

    Arguments:
        config: a resolved config.

    Returns:
        texts by file name: `config.json` (complete), `origins.json` (every layer that touched
        each value, the winner last) and `config.toml` (what differs from the defaults, with
        origins as comments).
    """
    from .files.write_json import write as write_json

    header = {
        "schema": SCHEMA_VERSION,
        "fingerprint": fingerprint(config),
        "modules": _foreign_modules(config),
    }
    chains: dict[str, object] = {}
    for leaf in leaves(config):
        chains[leaf.key] = {
            "value": json_value(leaf.value),
            "role": leaf.role.name,
            "layers": _layers(leaf),
        }
    return {
        CONFIG: write_json({HEADER: header, **to_plain(config)}),
        ORIGINS: write_json(chains),
        MINIMAL: minimal_toml(config),
    }


def minimal_toml(config: Config) -> str:
    """Only what differs from the defaults, each line with its origin as a comment.

    Arguments:
        config: a resolved config.

    Returns:
        TOML that composes to an equal config.
    """
    from .files.write_toml import write

    comments = {leaf.path: leaf.describe_origin() for leaf in leaves(config) if leaf.chain}
    return write(to_minimal(config), comments)


def is_record(path: str) -> bool:
    """Whether a path is a folder with a recorded config.

    Arguments:
        path: any path.

    Returns:
        True if `config.json` lies in it.
    """
    return os.path.isfile(os.path.join(path, CONFIG))


def read_record(root: type[C], folder: str) -> tuple[C, dict[str, Any]]:
    """The draft that a record describes, with derived values left to be derived again.

    Every recorded value is kept, also where today's default is another one: a record says what
    the run was, whatever has become of the defaults since. Each keeps the origins it had.

    Arguments:
        root: the class of the configuration.
        folder: a folder with `config.json` and `origins.json`.

    Returns:
        the draft and the record's header (`schema`, `fingerprint`).

    Raises:
        SetpointError: if the folder holds no record, or one that cannot be read.
        ConfigError: if today's classes cannot take the recorded values.
    """
    from .files.read import read

    if not is_record(folder):
        raise SetpointError(f"{folder} is not a run directory: it has no {CONFIG}")
    document = read(os.path.join(folder, CONFIG))
    header = cast(dict[str, Any], document.data.get(HEADER))
    if not isinstance(header, dict) or header.get("schema") != SCHEMA_VERSION:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SetpointError(
            f"{document.name}: this is not a record of schema {SCHEMA_VERSION}, which is the one "
            f"that this version of Setpoint reads"
        )
    recorded = _read_origins(os.path.join(folder, ORIGINS))
    derived = {key for key, entry in recorded.items() if entry["layers"][-1]["layer"] == DERIVED}
    values = {key: value for key, value in document.data.items() if key != HEADER}
    origin = Origin(RECORD, folder, _finder(document))
    draft = root()
    editor = Editor(draft, whole=True)
    editor.merge(_without(values, derived, ""), origin)
    if editor.problems:
        missing = [m for m in header.get("modules", []) if m not in sys.modules]
        if missing:
            raise SetpointError(
                f"{folder}: the record uses config classes of {', '.join(missing)}; records are "
                f"data and import nothing, so name what is to be imported: "
                f"{' '.join(f'--import {module}' for module in missing)}"
            )
        raise ConfigError(editor.problems)
    for leaf in leaves(draft):
        if leaf.chain and leaf.key in recorded:
            leaf.chain[:] = _chain(recorded[leaf.key]["layers"], leaf.chain[-1][1])
    return draft, header


def recorded_differences(folder: str, config: Config) -> list[Difference]:
    """What differs between a record, as it was written, and a config of today.

    The record's own values are compared, not what today's defaults and derivations would make of
    it, so that a derivation that has changed since shows as a difference, too.

    Arguments:
        folder: a folder with a record.
        config: a resolved config.

    Returns:
        what differs; the record is the left side.

    Raises:
        SetpointError: if the record cannot be read.
    """
    here = {leaf.key: leaf for leaf in leaves(config)}
    found: list[Difference] = []
    recorded = _read_origins(os.path.join(folder, ORIGINS))
    for path in [*recorded, *(key for key in here if key not in recorded)]:
        entry, leaf = recorded.get(path), here.get(path)
        left = ABSENT if entry is None else entry["value"]
        right = ABSENT if leaf is None else json_value(leaf.value)
        if same(left, right):
            continue
        origin = "" if entry is None else str(entry["layers"][-1]["origin"])
        role = leaf.role if leaf is not None else ROLES[entry["role"] if entry else ""]
        today = leaf.describe_origin() if leaf is not None else ""
        found.append(Difference(path, left, right, origin, today, role))
    return found


def _read_origins(name: str) -> dict[str, dict[str, Any]]:
    from .files.read import read

    chains: Any = read(name).data
    try:
        for entry in chains.values():
            _ = entry["value"], ROLES[entry["role"]], entry["layers"][-1]["layer"]
    except (LookupError, TypeError, AttributeError):
        raise SetpointError(f"{name}: these are not the origins of a record") from None
    return chains


def _foreign_modules(config: Config) -> list[str]:
    """The modules of config classes that Setpoint does not bring itself."""
    modules = {type(section).__module__ for _, section in sections(config)}
    return sorted(name for name in modules if name.partition(".")[0] != "setpoint")


def _layers(leaf: Leaf) -> list[dict[str, object]]:
    """The layers that touched a value as a record has them; the last has the value itself."""
    layers: list[dict[str, object]] = [
        {"layer": origin.layer, "origin": origin.describe(leaf.path), "value": _text(value)}
        for origin, value in leaf.chain
    ] or [{"layer": DEFAULT, "origin": DEFAULT}]
    layers[-1]["value"] = json_value(leaf.value)
    return layers


def _chain(layers: Sequence[Mapping[str, Any]], value: object) -> Chain:
    """The layers that once touched a value, with the value itself at the end."""
    chain: Chain = [(Recorded(str(e["layer"]), str(e["origin"])), e["value"]) for e in layers]
    chain[-1] = (chain[-1][0], value)
    if chain[-1][0].layer == REFERENCE and len(chain) > 1:
        # Like a derived value, it is computed again.
        chain[-2] = (chain[-2][0], Reference(str(chain[-2][1])))
    return chain


def _without(values: Mapping[str, Any], derived: set[str], prefix: str) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in values.items():
        path = f"{prefix}{key}"
        if path in derived:
            continue
        if isinstance(value, dict):
            value = _without(cast(dict[str, Any], value), derived, f"{path}.")
        elif isinstance(value, list):
            items = cast(list[Any], value)
            value = [
                _without(cast(dict[str, Any], item), derived, f"{path}.{index}.")
                if isinstance(item, dict)
                else item
                for index, item in enumerate(items)
            ]
        result[key] = value
    return result


def _finder(document: Document) -> Callable[[Path], str]:
    def find(path: Path) -> str:
        place = document.locate(path)
        return f"{document.name}:{place[0]}" if place else document.name

    return find


def _text(value: object) -> object:
    if isinstance(value, Config):
        return type(value).__setpoint__.tag or type(value).__name__
    dump = getattr(value, "dump", None)
    if callable(dump):
        return dump()
    if isinstance(value, tuple | list):
        return [_text(item) for item in cast(Sequence[object], value)]
    if isinstance(value, dict):
        return {key: _text(item) for key, item in cast(dict[str, object], value).items()}
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
