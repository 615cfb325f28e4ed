"""Configs and records as flat tables, which can be compared whatever fields they have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .base import Config
from .data import json_value, same
from .recorded import ROLES, load_record
from .role import Role
from .walk import leaves, within


class Entry:
    """One value of a table.

    Arguments:
        value: in plain data.
        origin: where it comes from, in words.
        role: the role of the field.
    """

    __slots__ = ("origin", "role", "value")

    def __init__(self, value: Any, origin: str, role: Role) -> None:
        self.value = value
        self.origin = origin
        self.role = role


Table = dict[str, Entry]


class Row:
    """One field in which tables differ.

    Arguments:
        path: the dotted path.
        entries: one for each table; None where it has no such field.
        role: the role of the field, in the first table that has it.
    """

    __slots__ = ("entries", "path", "role")

    def __init__(self, path: str, entries: Sequence[Entry | None], role: Role) -> None:
        self.path = path
        self.entries = tuple(entries)
        self.role = role


def leaf_table(config: Config, beside: Config | None = None) -> Table:
    """The table of a config.

    Arguments:
        config: a resolved config.
        beside: another one, to be compared with; what is plainly the same in both is left out.

    Returns:
        its values by dotted path, in the order of declaration.
    """
    return {
        leaf.key: Entry(leaf.value, leaf.describe_origin(), leaf.role)
        for leaf in leaves(config, beside=beside)
    }


def recorded_table(root: type[Config], folder: str) -> tuple[Table, list[str]]:
    """The table of a record: what it says itself, whatever today's classes would make of it.

    Arguments:
        root: the class of the configuration, whose migrations apply to a record of an old schema.
        folder: a folder with a record.

    Returns:
        the table, and what has changed in a record of an older schema, in words.

    Raises:
        SetpointError: if the record cannot be read.
    """
    record = load_record(root, folder)
    table = {
        path: Entry(entry["value"], str(entry["layers"][-1]["origin"]), ROLES[entry["role"]])
        for path, entry in record.origins.items()
    }
    return table, record.notes


def compare(
    tables: Sequence[Table], roles: Iterable[Role] | None = None, ignore: Iterable[str] = ()
) -> list[Row]:
    """Only what differs.

    Arguments:
        tables: two or more.
        roles: compare only fields that have one of these roles in some table; all if None.
        ignore: dotted paths of fields and sections to leave out.

    Returns:
        a row for each field that not all tables have, or that has several values.
    """
    wanted = None if roles is None else set(roles)
    left_out = tuple(ignore)
    rows: list[Row] = []
    for path in _paths(tables):
        if any(within(path, section) for section in left_out):
            continue
        entries = [table.get(path) for table in tables]
        present = [entry for entry in entries if entry is not None]
        if wanted is not None and not any(entry.role in wanted for entry in present):
            continue
        first = json_value(present[0].value)
        if len(present) < len(tables) or not all(
            same(first, json_value(entry.value)) for entry in present[1:]
        ):
            rows.append(Row(path, entries, present[0].role))
    return rows


def _paths(tables: Sequence[Table]) -> list[str]:
    """All paths, in the order of the first table; those it lacks stand where others have them."""
    order = list(tables[0])
    for table in tables[1:]:
        if table.keys() <= set(order):
            continue
        before: dict[str, list[str]] = {}
        known = set(order)
        waiting: list[str] = []
        for path in table:
            if path in known:
                before[path], waiting = waiting, []
            else:
                waiting.append(path)
        merged = [each for path in order for each in (*before.get(path, ()), path)]
        merged += waiting
        order = merged
    return order
