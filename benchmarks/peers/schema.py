"""Setpoint's own classes in neutral words, so that a peer's tree cannot drift from ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from setpoint.config import Config, Free
from setpoint.config.schema.field import Bounds, FieldInfo
from setpoint.config.types.base import (
    BoolType,
    FieldType,
    FloatType,
    IntType,
    LiteralType,
    PathType,
    ScalarType,
    StrType,
)
from setpoint.config.types.compound import (
    AnyOfType,
    FreeType,
    OptionalType,
    SectionType,
    SequenceType,
    TupleType,
)
from setpoint.config.values.node import chain_of
from setpoint.config.words.plain_data import MISSING
from setpoint.editor_schema.help import class_help, field_help

# What `Period` and `Duration` accept, for peers that have no such type.
QUANTITY = r"last_step|never|[0-9][0-9_.]*(e[0-9]+)?( *[a-z]+)?"
NAMES = {IntType: "int", FloatType: "float", BoolType: "bool", StrType: "str", PathType: "Path"}


@dataclass(frozen=True)
class Field:
    """One field of one class.

    Arguments:
        name, help: as declared.
        kind: its type.
        default: as source, or None if it must be given.
        bounds, items: the ranges of the value and of its items.
        family: the class that the variants of a union have in common, or None.
    """

    name: str
    help: str
    kind: FieldType
    default: str | None
    bounds: Bounds | None
    items: Bounds | None
    family: str | None


@dataclass(frozen=True)
class Section:
    """One class.

    Arguments:
        name, help: as declared.
        tag: what selects it in a union, or None.
        family: the class that it has in common with the other variants, or None.
        fields: those it inherits among them.
    """

    name: str
    help: str
    tag: str | None
    family: str | None
    fields: tuple[Field, ...]


def sections(root: type[Config]) -> list[Section]:
    """Every class that can be part of a tree, each after those it names.

    Arguments:
        root: the class of the tree's root.

    Returns:
        the classes; a family is represented by its variants.
    """
    found: dict[type[Config], Section] = {}
    _visit(root, found)
    return list(found.values())


def _visit(cls: type[Config], found: dict[type[Config], Section]) -> None:
    if cls in found:
        return
    for info in cls.__setpoint__.fields.values():
        for inner in classes_in(info.type):
            _visit(inner, found)
    fields = tuple(_field(cls, info) for info in cls.__setpoint__.fields.values())
    # Peers take a field without a default only before those that have one.
    ordered = sorted(fields, key=lambda field: field.default is not None)
    tag = cls.__setpoint__.tag
    family = cls.__bases__[0].__name__ if tag is not None else None
    found[cls] = Section(cls.__name__, class_help(cls), tag, family, tuple(ordered))


def classes_in(kind: FieldType) -> Iterator[type[Config]]:
    """The classes that a field may hold.

    Arguments:
        kind: the field's type.

    Returns:
        variants instead of their family.
    """
    if isinstance(kind, SectionType):
        yield from kind.variants().values() or kind.classes
    for part in kind.parts:
        yield from classes_in(part)


def _field(cls: type[Config], info: FieldInfo) -> Field:
    default: str | None = None
    if info.derived:
        default = "None"  # the peers leave unset what Setpoint would derive
    elif not info.required:
        default = expression(info.initial())
    kind = OptionalType(info.type) if info.derived else info.type
    help = " ".join(field_help(cls, info.name).split())
    family = _family(info.type)
    items = info.item_bounds if "tuple[" in annotation(kind, "{}") else None
    return Field(info.name, help, kind, default, info.bounds, items, family)


def _family(kind: FieldType) -> str | None:
    if isinstance(kind, SectionType) and kind.variants():
        return kind.classes[0].__name__
    return None


def expression(value: Any) -> str:
    """A value as Python source for a peer.

    Arguments:
        value: what a field holds; sections show what was set in them.

    Returns:
        an expression.
    """
    if value is MISSING:
        return "None"
    if isinstance(value, Config):
        names = [name for name in type(value).__setpoint__.fields if chain_of(value, name)]
        inside = ", ".join(f"{name}={expression(getattr(value, name))}" for name in names)
        return f"{type(value).__name__}({inside})"
    if isinstance(value, tuple):
        return f"({', '.join(map(expression, value))},)" if value else "()"
    if isinstance(value, Path):
        return f"Path({value.as_posix()!r})"
    if isinstance(value, Free):
        return "{}"
    dump = getattr(value, "dump", None)
    return repr(dump() if callable(dump) else value)


def annotation(kind: FieldType, union: str, item: str = "{}") -> str:
    """A type as Python source for a peer.

    Arguments:
        kind: the type.
        union: how the peer marks a tagged union, with `{}` for its members.
        item: what to make of the type of an item, with `{}` for it.

    Returns:
        an annotation.
    """
    if isinstance(kind, OptionalType):
        return f"{annotation(kind.inner, union, item)} | None"
    if isinstance(kind, SectionType):
        names = [cls.__name__ for cls in classes_in(kind)]
        return names[0] if len(names) == 1 else union.format(" | ".join(names))
    if isinstance(kind, SequenceType):
        return f"tuple[{item.format(annotation(kind.item, union))}, ...]"
    if isinstance(kind, TupleType):
        inside = ", ".join(item.format(annotation(part, union)) for part in kind.parts)
        return f"tuple[{inside}]"
    if isinstance(kind, LiteralType):
        return f"Literal[{', '.join(map(repr, kind.choices))}]"
    if isinstance(kind, FreeType):
        return "dict[str, str]"
    if isinstance(kind, ScalarType):
        return "str"
    if isinstance(kind, AnyOfType):
        return " | ".join(annotation(part, union) for part in kind.parts)
    return NAMES.get(type(kind), "str")  # types that peers have not are texts to them


def is_quantity(kind: FieldType) -> bool:
    """Whether a text is a period or a duration for Setpoint.

    Arguments:
        kind: the type.

    Returns:
        True for types that bring their own reading.
    """
    return isinstance(kind, ScalarType)


def number(limit: float) -> str:
    """A limit as source.

    Arguments:
        limit: any number; an infinite one says that the value must be finite.

    Returns:
        an expression of Python.
    """
    return f"float({str(limit)!r})" if limit in (float("inf"), float("-inf")) else repr(limit)
