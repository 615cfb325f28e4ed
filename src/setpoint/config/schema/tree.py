"""The tree of config classes: the classes at a path, all fields, tags and added sections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..types.base import FieldType
from ..types.compound import section_classes
from ..values.node import Node
from ..words.errors import DeclarationError, Invalid
from ..words.names import nearest
from .class_info import RESERVED, ConfigMeta, full_name
from .field import FieldInfo, Role


def classes_at(root: type[Node], path: tuple[str | int, ...]) -> list[type[Any]]:
    """The config classes that can stand at a path, in any of the variants along it."""
    classes: list[type[Any]] = [root]
    item = False  # whether the next part is an index or a key, which leads to the same classes
    for part in path:
        if item:
            item = False
            continue
        fields = _fields_of(classes, str(part))
        classes = [cls for info in fields for cls in section_classes(info.type)]
        item = any(info.type.is_container() for info in fields)
    return list(dict.fromkeys(classes))


def fields_at(root: type[Node], path: tuple[str | int, ...]) -> list[FieldInfo]:
    """The fields that a path can lead to, in any of the variants along it."""
    return _fields_of(classes_at(root, path[:-1]), str(path[-1]))


def _fields_of(classes: list[type[Any]], key: str) -> list[FieldInfo]:
    return [info for cls in classes if (info := field_of(cls, key)) is not None]


def field_of(cls: type[Node], key: str) -> FieldInfo | None:
    """The field that a key names; hyphens and underscores are the same."""
    fields = cls.__setpoint__.fields
    return fields.get(key) or fields.get(key.replace("-", "_"))


def classes_below(root: type[Node]) -> list[type[Node]]:
    """The classes of all sections of a tree, those of all variants included, the root first."""
    classes = [root]
    for cls in classes:
        for info in cls.__setpoint__.fields.values():
            classes += [below for below in section_classes(info.type) if below not in classes]
    return classes


def all_fields(
    cls: type[Node], prefix: str = "", above: tuple[type[Any], ...] = ()
) -> Iterator[tuple[str, FieldInfo]]:
    """Every field of a tree of classes, of all variants; a class inside itself is entered once."""
    for name, info in cls.__setpoint__.fields.items():
        path = f"{prefix}{name}"
        yield path, info
        for section in section_classes(info.type):
            if section not in above:
                yield from all_fields(section, f"{path}.", (*above, section))


def holds_secret(kind: FieldType) -> bool:
    """True if values of a type may hold a secret, also in a section inside.

    What was given must then not be repeated, also where it cannot be read at all.
    """
    inside = (info for cls in section_classes(kind) for _, info in all_fields(cls))
    return kind.is_secret() or any(info.type.is_secret() for info in inside)


def known_tags(root: type[Node]) -> dict[str, list[str]]:
    """All tags of a tree of classes, each with the dotted paths of its fields in any variant."""
    tags: dict[str, dict[str, None]] = {}
    for path, info in all_fields(root):
        for tag in info.tags:
            tags.setdefault(tag, {})[path] = None
    return {tag: [*paths] for tag, paths in tags.items()}


def unknown_tag(root: type[Node], tag: str) -> Invalid:
    """The error for a tag that reaches nothing."""
    known = known_tags(root)
    if tag in known:
        paths = ", ".join(known[tag])
        return Invalid(
            f"matches no field of this configuration; the fields with this tag are {paths}"
        )
    carrying = [t for t, paths in known.items() if any(p.rpartition(".")[2] == tag for p in paths)]
    close = carrying or nearest(tag, known, 1)
    hint = f"Did you mean tag.{close[0]}?" if close else ""
    return Invalid(f"there is no tag {tag!r}", tuple(known), hint=hint)


def add_section(
    root: type[Node], name: str, section: type[Node], *, role: Role | None = None
) -> None:
    """Give a root and its subclasses a further section, null until a layer sets something in it.

    While it is null it is no part of the fingerprint, so that other runs keep theirs.

    Raises:
        TypeError: if the name is taken or no identifier, or the section is no config class.
    """
    if not isinstance(section, ConfigMeta):
        raise DeclarationError(
            f"{root.__name__}.{name}: {section!r} is not a section; give a class derived from "
            f"Config"
        )
    if not name.isidentifier() or name.startswith("_") or name in RESERVED:
        raise DeclarationError(f"{root.__name__}: {name!r} cannot be the name of a section")
    before = root.__setpoint__.added.get(name)
    again = before is not None and full_name(before) == full_name(section)
    if not again and (name in root.__setpoint__.fields or hasattr(root, name)):
        raise DeclarationError(f"{root.__name__} has {name!r} already; choose another name")
    info = FieldInfo(default=None, role=role or root.__setpoint__.role)
    info.name, info.owner, info.annotation = name, root, section | None
    for cls in _with_subclasses(root):
        cls.__setpoint__.fields[name] = info
        cls.__setpoint__.constants_read = None
        cls.__setpoint__.added[name] = section


def added_sections(config: Node) -> dict[str, Any]:
    """The added sections that are not null."""
    values = {name: getattr(config, name) for name in type(config).__setpoint__.added}
    return {name: value for name, value in values.items() if value is not None}


def _with_subclasses(root: type[Node]) -> list[type[Node]]:
    return [root, *(cls for below in root.__subclasses__() for cls in _with_subclasses(below))]
