"""What differs between two resolved configs, with both origins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .base import Config
from .data import json_value
from .fingerprint import identity_leaves
from .role import IDENTITY, Role
from .table import Row, compare, leaf_table


class Absent:
    """The type of `ABSENT`, which stands for a field that one side does not have."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "(absent)"


ABSENT = Absent()


class Difference:
    """One value in which two configs differ.

    Arguments:
        path: the dotted path.
        left, right: the values in plain data, or `ABSENT`.
        left_origin, right_origin: where they come from, in words.
        role: the role of the field.
    """

    __slots__ = ("left", "left_origin", "path", "right", "right_origin", "role")

    def __init__(
        self, path: str, left: Any, right: Any, left_origin: str, right_origin: str, role: Role
    ) -> None:
        self.path = path
        self.left = left
        self.right = right
        self.left_origin = left_origin
        self.right_origin = right_origin
        self.role = role

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


def differences(
    left: Config, right: Config, roles: Sequence[Role] | None = None
) -> list[Difference]:
    """Compare two resolved configs value by value.

    Arguments:
        left, right: the configs, of the same root class.
        roles: compare only fields of these roles; all if None.

    Returns:
        what differs, in the order of declaration.
    """
    rows = compare([leaf_table(left, right), leaf_table(right, left)], roles)
    return [difference_of(row) for row in rows]


def difference_of(row: Row) -> Difference:
    """A row of two tables as a difference.

    Arguments:
        row: from `compare` of two tables.

    Returns:
        the difference.
    """
    left, right = row.entries
    return Difference(
        row.path,
        ABSENT if left is None else left.value,
        ABSENT if right is None else right.value,
        "" if left is None else left.origin,
        "" if right is None else right.origin,
        row.role,
    )


def explain(left: Config, right: Config) -> list[Difference]:
    """The values that make two fingerprints differ.

    Arguments:
        left, right: resolved configs, of the same root class.

    Returns:
        what differs, with both origins; empty if and only if the fingerprints are equal.
    """
    here = {leaf.key: json_value(leaf.value) for leaf in identity_leaves(left)}
    there = {leaf.key: json_value(leaf.value) for leaf in identity_leaves(right)}
    counted = here.keys() | there.keys()
    return [item for item in differences(left, right, [IDENTITY]) if item.path in counted]
