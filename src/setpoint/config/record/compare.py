"""Configs and records as flat tables, which can be compared whatever fields they have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..draft.walk import leaves
from ..schema.bounds import IDENTITY, Role
from ..values.node import Node
from ..values.origin import Origin
from ..words.names import Path, within
from ..words.shown import json_value, same
from .fingerprint import identity_leaves
from .record import ROLES, load_record


class Entry:
    """One value of a table."""

    __slots__ = ("origin", "role", "value")

    def __init__(self, value: Any, origin: str, role: Role) -> None:
        self.value = value
        self.origin = origin
        self.role = role


Table = dict[str, Entry]


class Row:
    """One field in which tables differ.

    Arguments:
        entries: one for each table; None where it has no such field.
    """

    __slots__ = ("entries", "path", "role")

    def __init__(self, path: str, entries: Sequence[Entry | None], role: Role) -> None:
        self.path = path
        self.entries = tuple(entries)
        self.role = role


def leaf_table(config: Node) -> Table:
    """The table of a config."""
    return {
        leaf.key: Entry(leaf.value, leaf.describe_origin(), leaf.role) for leaf in leaves(config)
    }


def recorded_table(root: type[Node], folder: str) -> tuple[Table, list[str]]:
    """The table of a record: what it says itself, whatever today's classes would make of it.

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
    """Only what differs."""
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


class Absent:
    """The type of `ABSENT`, which stands for a field that one side does not have."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "(absent)"


ABSENT = Absent()


# An origin in words, or the origin with the path in it, which are put into words when asked for.
Source = str | tuple[Origin, Path]


class Difference:
    """One value in which two configs differ.

    Arguments:
        left, right: the values in plain data, or `ABSENT`.
        origins: where they come from.
    """

    __slots__ = ("_origins", "left", "path", "right", "role")

    def __init__(
        self, path: str, left: Any, right: Any, origins: tuple[Source, Source], role: Role
    ) -> None:
        self.path = path
        self.left = left
        self.right = right
        self._origins = origins
        self.role = role

    @property
    def left_origin(self) -> str:
        """Where the left value comes from, in words."""
        return self._origin(0)

    @property
    def right_origin(self) -> str:
        """Where the right value comes from, in words."""
        return self._origin(1)

    def __reduce__(self) -> tuple[Any, ...]:
        # An origin finds its place in this process only.
        origins = self.left_origin, self.right_origin
        return Difference, (self.path, self.left, self.right, origins, self.role)

    def _origin(self, side: int) -> str:
        source = self._origins[side]
        return source if isinstance(source, str) else source[0].describe(source[1])

    def __str__(self) -> str:
        left, right = (
            repr(value) + (f" ({origin})" if origin else "")
            for value, origin in (
                (self.left, self.left_origin),
                (self.right, self.right_origin),
            )
        )
        return f"{self.path}: {left} -> {right}"

    def __repr__(self) -> str:
        return f"Difference({self.path!r}, {self.left!r}, {self.right!r})"

    def to_json(self) -> dict[str, object]:
        """The difference for machines.

        Returns:
            a mapping of plain values; an absent side has no value key.
        """
        result: dict[str, object] = {"path": self.path, "role": self.role.name}
        if self.left is not ABSENT:
            result["left"], result["left_origin"] = self.left, self.left_origin
        if self.right is not ABSENT:
            result["right"], result["right_origin"] = self.right, self.right_origin
        return result


def differences(left: Node, right: Node, roles: Sequence[Role] | None = None) -> list[Difference]:
    """Compare two resolved configs value by value."""
    rows = compare([leaf_table(left), leaf_table(right)], roles)
    return [difference_of(row) for row in rows]


def difference_of(row: Row) -> Difference:
    """A row of two tables as a difference."""
    left, right = row.entries
    return Difference(
        row.path,
        ABSENT if left is None else left.value,
        ABSENT if right is None else right.value,
        ("" if left is None else left.origin, "" if right is None else right.origin),
        row.role,
    )


def explain(left: Node, right: Node) -> list[Difference]:
    """The values that make two fingerprints differ.

    Returns:
        what differs, with both origins; empty if and only if the fingerprints are equal.
    """
    here = {leaf.key: json_value(leaf.value) for leaf in identity_leaves(left)}
    there = {leaf.key: json_value(leaf.value) for leaf in identity_leaves(right)}
    counted = here.keys() | there.keys()
    return [item for item in differences(left, right, [IDENTITY]) if item.path in counted]


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
        found.append(Difference(path, left, right, (origin, today), role))
    return found
