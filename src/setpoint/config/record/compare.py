"""Configs and records as flat tables, which can be compared whatever fields they have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..draft.walk import leaves
from ..schema.field import IDENTITY, Role
from ..values.node import Node
from ..words.names import within
from ..words.plain_data import plain, same
from .record import ROLES, load_record


class Absent:
    """The type of `ABSENT`, which stands for a field that one side does not have."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "(absent)"


ABSENT = Absent()


class Entry(NamedTuple):
    """One value of a table."""

    value: Any
    origin: str
    role: Role


NOTHING = Entry(ABSENT, "", IDENTITY)
Table = dict[str, Entry]


class Difference(NamedTuple):
    """One field in which tables differ; of each its entry, or None where it has no such field."""

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
        """The difference for machines; an absent side has no value key."""
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
) -> list[Difference]:
    """Only what differs."""
    wanted = None if roles is None else set(roles)
    ignored = tuple(ignore)
    result: list[Difference] = []
    for path in _paths(tables):
        if any(within(path, section) for section in ignored):
            continue
        entries = [table.get(path) for table in tables]
        present = [entry for entry in entries if entry is not None]
        if wanted is not None and not any(entry.role in wanted for entry in present):
            continue
        first = plain(present[0].value)
        if len(present) < len(tables) or not all(
            same(first, plain(entry.value)) for entry in present[1:]
        ):
            result.append(Difference(path, tuple(entries), present[0].role))
    return result


def _paths(tables: Sequence[Table]) -> list[str]:
    """All paths, in the order of the first table; those it lacks stand where others have them."""
    order = list(tables[0])
    for table in tables[1:]:
        known = set(order)
        inserted: dict[str, list[str]] = {}
        waiting: list[str] = []
        for path in table:
            if path in known:
                inserted[path], waiting = waiting, []
            else:
                waiting.append(path)
        order = [new for path in order for new in (*inserted.get(path, ()), path)] + waiting
    return order


def differences(left: Node, right: Node, roles: Sequence[Role] | None = None) -> list[Difference]:
    """Compare two resolved configs value by value, or those values that have one of some roles."""
    return compare([leaf_table(left), leaf_table(right)], roles)


def recorded_differences(folder: str, config: Node) -> list[Difference]:
    """Compare a record, the left side, with a config of today, under today's roles.

    The record's own values are compared, not what today's defaults and derivations would make of
    it, so that a derivation that has changed since shows as a difference, too.

    Raises:
        SetpointError: if the record cannot be read.
    """
    recorded, _ = recorded_table(type(config), folder)
    table = leaf_table(config)
    today = {path: entry._replace(value=plain(entry.value)) for path, entry in table.items()}
    different = compare([recorded, today])
    return [one._replace(role=today.get(one.path, one).role) for one in different]
