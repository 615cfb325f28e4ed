"""A resolved config as a record on disk, and the way back from it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from ..draft.plain import to_minimal, to_plain
from ..draft.shared_sections import entries_of, field_at, layer_text
from ..draft.walk import Leaf, leaves, sections
from ..layers.editor import Editor
from ..layers.presets import load_plugins
from ..migrations.chain import HEADER
from ..schema.bounds import IDENTITY
from ..schema.field import FieldInfo
from ..values.node import Chain, Node
from ..values.origin import DEFAULT, DERIVED, RECORD, REFERENCE, Origin, Recorded
from ..values.reference import may_refer
from ..values.user_code import importable_name
from ..words.errors import ConfigError, Invalid, Problem, SetpointError
from ..words.shown import json_value, same, shown_plain
from .compare import ABSENT, Difference
from .fingerprint import as_before, fingerprint, formerly
from .reader import AS_BEFORE, CONFIG, FORMERLY, ORIGINS, ROLES, Record, load_record
from .reader import is_record as is_record

C = TypeVar("C", bound=Node)
MINIMAL = "config.toml"


def record_files(config: Node) -> dict[str, str]:
    """The three files that record a config.

    Returns:
        texts by file name: `config.json` (complete), `origins.json` (every layer that touched
        each value, the winner last) and `config.toml` (what differs from the defaults, with
        origins as comments).
    """
    from ..files.write_json import write_json

    header = {
        "schema": type(config).__setpoint__.schema,
        "fingerprint": fingerprint(config),
        "modules": _foreign_modules(config),
    }
    chains: dict[str, object] = {}
    for leaf in leaves(config):
        entry: dict[str, object] = {
            "value": json_value(leaf.value),
            "role": leaf.role.name,
            "layers": _layers(leaf),
        }
        entries = entries_of(config, leaf)
        if entries:
            entry["entries"] = {str(each.path[-1]): _layers(each) for each in entries}
        if leaf.role is IDENTITY and as_before(config, leaf):
            entry[AS_BEFORE] = True
        elif leaf.role is IDENTITY and (old := formerly(config, leaf)) is not None:
            entry[FORMERLY] = old
        chains[leaf.key] = entry
    return {
        CONFIG: write_json({HEADER: header, **to_plain(config, replace_mappings=True)}),
        ORIGINS: write_json(chains),
        MINIMAL: f"{HEADER} = {{schema = {header['schema']}}}\n\n{minimal_toml(config)}",
    }


def minimal_toml(config: Node) -> str:
    """Only what differs from the defaults, each line with its origin as a comment."""
    from ..files.write_toml import write_toml

    touched = (leaf for leaf in leaves(config) if leaf.chain)
    comments = {
        each.path: _comment(each) for leaf in touched for each in entries_of(config, leaf) or [leaf]
    }
    return write_toml(to_minimal(config), comments)


def _comment(leaf: Leaf) -> str:
    if leaf.origin.layer == REFERENCE and len(leaf.chain) > 1:
        return f"= {shown_plain(leaf.value)}, {leaf.chain[-2][0].describe(leaf.path)}"
    return leaf.describe_origin()


def read_record(root: type[C], folder: str) -> tuple[C, dict[str, Any]]:
    """The draft that a record describes, with derived values left to be derived again.

    Every recorded value is kept, also where today's default is another one: a record says what
    the run was, whatever has become of the defaults since. Each keeps the origins it had. A record
    of an older schema is taken to today's one in memory.

    Arguments:
        folder: a folder with `config.json` and `origins.json`.

    Returns:
        the draft, and the record's header (`schema`, `fingerprint`) with `notes`: what has
        changed in a record of an older schema, in words.

    Raises:
        SetpointError: if the folder holds no record, or one that cannot be read.
        ConfigError: if today's classes cannot take the recorded values.
    """
    record = load_record(root, folder)
    recorded = record.origins
    editor = _merged(root, record, folder)
    broken: list[SetpointError] = []
    # What is installed here is not what a record imports: it is known in every command.
    if editor.problems and load_plugins(broken):
        editor = _merged(root, record, folder)
    draft = cast(C, editor.root)
    if editor.problems:
        modules: Any = record.header.get("modules")
        names = map(str, cast(list[Any], modules) if isinstance(modules, list) else ())
        # What is shown may be pasted into a shell, so that it must be names and nothing else.
        wanted = [name for name in names if all(map(str.isidentifier, name.split(".")))]
        missing = [name for name in wanted if name not in sys.modules]
        if missing and not broken:
            raise SetpointError(
                f"{folder}: the record uses config classes of {', '.join(missing)}; records are "
                f"data and import nothing, so name what is to be imported: "
                f"{' '.join(f'--import {module}' for module in missing)}"
            )
        raise ConfigError([*editor.problems, *(Problem("", str(error)) for error in broken)])
    for leaf in leaves(draft):
        if leaf.chain and leaf.key in recorded:
            info = field_at(draft, leaf.path)
            leaf.chain[:] = _chain(recorded[leaf.key]["layers"], leaf.chain[-1][1], info)
    return draft, {**record.header, "notes": record.notes}


def _merged(root: type[Node], record: Record, folder: str) -> Editor:
    """The recorded values in a new draft, but for the derived ones."""
    layers = {key: entry["layers"][-1]["layer"] for key, entry in record.origins.items()}
    derived = {key for key, layer in layers.items() if layer == DERIVED}
    editor = Editor(root(), replace_mappings=True)
    editor.merge(_without(record.values, derived, ""), Origin(RECORD, folder, record.find))
    return editor


def recorded_differences(folder: str, config: Node) -> list[Difference]:
    """What differs between a record, as it was written, and a config of today.

    The record's own values are compared, not what today's defaults and derivations would make of
    it, so that a derivation that has changed since shows as a difference, too.

    Returns:
        what differs; the record is the left side.

    Raises:
        SetpointError: if the record cannot be read.
    """
    here = {leaf.key: leaf for leaf in leaves(config)}
    found: list[Difference] = []
    recorded = load_record(type(config), folder).origins
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


def _foreign_modules(config: Node) -> list[str]:
    """The modules of config classes that Setpoint does not bring itself."""
    modules = {importable_name(type(section).__module__) for _, section in sections(config)}
    return sorted(name for name in modules if name.partition(".")[0] != "setpoint")


def _layers(leaf: Leaf) -> list[dict[str, object]]:
    """The layers that touched a value as a record has them; the last has the value itself."""
    layers: list[dict[str, object]] = [
        {"layer": origin.layer, "origin": origin.describe(leaf.path), "value": layer_text(value)}
        for origin, value in leaf.chain
    ] or [{"layer": DEFAULT, "origin": DEFAULT}]
    layers[-1]["value"] = json_value(leaf.value)
    return layers


def _chain(layers: Sequence[Mapping[str, Any]], value: object, info: FieldInfo | None) -> Chain:
    """The layers that once touched a value, with the value itself at the end."""
    chain: Chain = [(Recorded(str(e["layer"]), str(e["origin"])), e["value"]) for e in layers]
    last = chain[-1][0]
    chain[-1] = (last, value)
    if last.layer == REFERENCE:
        # Like a derived value, it is computed again, from the references as they were given.
        try:
            given = info.read(chain[-2][1], last) if info is not None and len(chain) > 1 else None
        except Invalid:
            given = None
        if may_refer(given):
            chain[-2] = (chain[-2][0], given)
        else:
            chain[-1] = (Recorded(RECORD, last.describe(())), value)
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
