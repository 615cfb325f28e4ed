"""What differs between two resolved configs, with both origins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from .base import Config
from .role import Role
from .walk import Leaf, leaves


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
    here = {leaf.key: leaf for leaf in leaves(left)}
    there = {leaf.key: leaf for leaf in leaves(right)}
    found: list[Difference] = []
    for key in [*here, *(key for key in there if key not in here)]:
        a, b = here.get(key), there.get(key)
        role = (a or b or _never()).role
        if roles is not None and role not in roles:
            continue
        if a is None or b is None or not same(a.value, b.value):
            found.append(Difference(key, _value(a), _value(b), _origin(a), _origin(b), role))
    return found


def same(left: Any, right: Any) -> bool:
    """Whether two plain values are the same configuration.

    Arguments:
        left, right: plain values.

    Returns:
        True if kind and value are equal.
    """
    # True equals 1 in Python, and 1 equals 1.0; in a configuration they are different values.
    if isinstance(left, list) and isinstance(right, list):
        ours, theirs = cast(list[Any], left), cast(list[Any], right)
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(left, dict) and isinstance(right, dict):
        here, there = cast(dict[str, Any], left), cast(dict[str, Any], right)
        return here.keys() == there.keys() and all(same(here[k], there[k]) for k in here)
    return type(cast(object, left)) is type(cast(object, right)) and left == right


def _value(leaf: Leaf | None) -> Any:
    return ABSENT if leaf is None else leaf.value


def _origin(leaf: Leaf | None) -> str:
    return "" if leaf is None else leaf.describe_origin()


def _never() -> Leaf:
    raise AssertionError("a key comes from one of the two sides")
