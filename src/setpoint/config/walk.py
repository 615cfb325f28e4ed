"""Walks over a config tree: its sections, and its leaves with their origins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from .base import Chain, Config, chain_of, value_or_missing
from .errors import SetpointError
from .field import MISSING
from .free import Free
from .origin import DEFAULT, Origin, Path
from .reference import Reference
from .role import BUDGET, IDENTITY, RUNTIME, Role
from .suggest import section_classes
from .types.base import FieldType, shown_plain

DEPTH = 64  # deeper than any file can be; only a section that contains itself gets there
UNTOUCHED = Origin(DEFAULT)
# Every type dumps these as they are, so it need not be worked out from the annotation.
PLAIN = frozenset({int, float, bool, str, type(None)})


class Leaf:
    """One value of a tree.

    Arguments:
        path: the path from the root.
        value: the value in plain data.
        role: its role, with the roles of the fields above it taken into account.
        chain: the layers that touched it; empty for a default.
    """

    __slots__ = ("chain", "path", "role", "value")

    def __init__(self, path: Path, value: Any, role: Role, chain: Chain) -> None:
        self.path = path
        self.value = value
        self.role = role
        self.chain = chain

    @property
    def key(self) -> str:
        """The dotted path."""
        return dotted(self.path)

    @property
    def origin(self) -> Origin:
        """The origin of the layer that won."""
        return self.chain[-1][0] if self.chain else UNTOUCHED

    def describe_origin(self) -> str:
        """The winning origin in words.

        Returns:
            for instance `exp.toml:3:1`.
        """
        return self.origin.describe(self.path)


def dotted(path: Path) -> str:
    """A path as people write it.

    Arguments:
        path: names and indices.

    Returns:
        for instance `data.sources.0.type`.
    """
    return ".".join(map(str, path))


def narrower(outer: Role, inner: Role) -> Role:
    """The role of a field inside a section: identity only if both are.

    Arguments:
        outer: the role of the field that holds the section.
        inner: the field's own role.

    Returns:
        the role that counts.
    """
    for role in (RUNTIME, BUDGET):
        if role in (outer, inner):
            return role
    return IDENTITY


def sections(config: Config, path: Path = ()) -> Iterator[tuple[Path, Config]]:
    """Every section of a tree, the root first.

    Arguments:
        config: the root.
        path: the root's own path.

    Returns:
        pairs of path and section; a section that stands in two places comes twice.

    Raises:
        SetpointError: if a section contains itself.
    """
    if len(path) > DEPTH:
        raise SetpointError(
            f"{type(config).__name__} contains itself: {dotted(path[:3])} and so on without end"
        )
    yield path, config
    for name, info in type(config).__setpoint__.fields.items():
        value: Any = value_or_missing(config, name)
        if isinstance(value, Config):
            yield from sections(value, (*path, name))
        elif isinstance(value, tuple | list | dict) and info.type.nested:
            for inner, section in info.type.sections(value):
                yield from sections(section, (*path, name, *inner))


def leaves(config: Config, path: Path = (), role: Role = IDENTITY) -> Iterator[Leaf]:
    """Every value of a tree, in order of declaration.

    Lists of plain values are one leaf; lists of sections are walked into. A null section is a
    leaf. The tag of a variant is a leaf named `type`.

    Arguments:
        config: the root.
        path: the root's own path.
        role: the role of the field that holds the root.

    Returns:
        the leaves; those without a value yet are left out.
    """
    for name, info in type(config).__setpoint__.fields.items():
        value: Any = value_or_missing(config, name)
        if value is MISSING:
            continue
        here: Path = (*path, name)
        own = narrower(role, info.role or IDENTITY)
        chain = chain_of(config, name)
        if isinstance(value, Config):
            yield from _section_leaves(value, here, own, chain)
        elif isinstance(value, Free):
            yield from _free_leaves(value, here, own)
        elif isinstance(value, Reference):
            yield Leaf(here, value.text, own, chain)
        elif value and isinstance(value, tuple | list | dict) and info.type.nested:
            for inner, section in info.type.sections(value):
                yield from _section_leaves(section, (*here, *inner), own, chain)
        elif value is not None and type(cast(object, value)) in PLAIN:
            yield Leaf(here, value, own, chain)
        else:
            if info.type.nested:
                own = _role_of_absence(info.type, own)
            yield Leaf(here, info.type.dump(value), own, chain)


def _section_leaves(section: Config, path: Path, role: Role, chain: Chain) -> Iterator[Leaf]:
    tag = type(section).__setpoint__.tag
    if tag is not None:
        own = narrower(role, type(section).__setpoint__.role)
        yield Leaf((*path, "type"), tag, own, chain)
    yield from leaves(section, path, role)


def _role_of_absence(kind: FieldType, role: Role) -> Role:
    """The role of null, or of an empty list, where a section could stand."""
    roles = {cls.__setpoint__.role for cls in section_classes(kind)}
    # Whether there is a tracker cannot matter more than which one.
    return narrower(role, roles.pop()) if len(roles) == 1 else role


def _free_leaves(area: Free, path: Path, role: Role) -> Iterator[Leaf]:
    for key, value in area.items():
        if isinstance(value, Free):
            yield from _free_leaves(value, (*path, key), role)
        else:
            yield Leaf((*path, key), Free(x=value).dump()["x"], role, area.chain(key))


def dropped(config: Config) -> Iterator[str]:
    """The values that a switch of variant could not keep, since the new one has no such field.

    Arguments:
        config: the root.

    Returns:
        a line for each, with its value and where it came from.
    """
    for path, section in sections(config):
        state = section._state  # pyright: ignore[reportPrivateUsage]
        for name, value, origin in state.dropped if state else ():
            here = (*path, name)
            tag = type(section).__setpoint__.tag
            yield (
                f"{dotted(here)} = {shown_plain(value)}, from {origin.describe(here)}: "
                f"type = {tag} has no such field"
            )
