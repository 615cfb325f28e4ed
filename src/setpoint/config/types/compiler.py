"""From the annotation of a field to its type."""

from __future__ import annotations

import enum
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from ..values.containers import Free
from ..values.node import Node
from ..values.scalar import ImportPath
from ..words.errors import DeclarationError
from .base import (
    BoolType,
    EnumType,
    FieldType,
    FloatType,
    ImportPathType,
    IntType,
    LiteralType,
    PathType,
    PatternType,
    ScalarType,
    StrType,
)
from .compound import (
    AnyOfType,
    AnyType,
    DataType,
    FreeType,
    MappingType,
    OptionalType,
    SectionType,
    SequenceType,
    TupleType,
)

Shape = TypeVar("Shape")
Result = TypeVar("Result")
SIMPLE: list[tuple[object, FieldType]] = [
    (int, IntType()),
    (float, FloatType()),
    (bool, BoolType()),
    (str, StrType()),
    (Any, AnyType()),
    (object, AnyType()),
]
NARROWEST_FIRST = (BoolType, IntType, FloatType, ScalarType, LiteralType, EnumType)
"""The order of alternatives: an int is a valid float as well."""

if TYPE_CHECKING:
    from functools import partial


class Component(Generic[Shape, Result]):
    """A field that contains a config and also accepts a `partial`; see `component`."""

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: object) -> Any: ...
        @overload
        def __get__(self, instance: object, owner: object) -> Shape: ...
        def __get__(self, instance: Any, owner: Any) -> Any: ...
        def __set__(self, instance: object, value: Shape | partial[Result]) -> None: ...


def own_package(title: str) -> tuple[str, ...]:
    """The package of a class, which the class trusts; None for Setpoint's own."""
    package = title.partition(".")[0]
    return () if package in ("setpoint", "__main__") else (package,)


def compile_annotation(annotation: Any, title: str) -> FieldType:
    """Compile an annotation to a type; `title` names the field in errors.

    Raises:
        DeclarationError: a config cannot have the annotation.
    """
    for plain, kind in SIMPLE:
        if annotation is plain:
            return kind
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    kind = (
        _special_form(annotation, origin, arguments, title)
        or _container(origin or annotation, arguments, title)
        or _class(annotation, title)
    )
    if kind is None:
        text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
        raise DeclarationError(
            f"{title}: {text} cannot be the type of a config's field; valid types: int, float, "
            f"bool, str, Path, Literal, Enum, Any, lists, tuples and dict[str, ...] of these, "
            f"config classes, ... | None, and classes with __setpoint_scalar__"
        )
    return kind


def _special_form(
    annotation: Any, origin: Any, arguments: tuple[Any, ...], title: str
) -> FieldType | None:
    if origin is Component and arguments[0] is not Any:
        return compile_annotation(arguments[0], title)
    if origin is typing.Literal:
        return LiteralType(arguments)
    if origin is typing.Union or origin is types.UnionType:
        return _union(arguments, title)
    if hasattr(annotation, "__supertype__"):  # NewTypes are for type checkers only
        return compile_annotation(annotation.__supertype__, title)
    if type(annotation).__name__ == "TypeAliasType":  # `type Name = ...`
        return compile_annotation(annotation.__value__, title)
    if origin is type or origin is Callable or annotation in (Callable, type):
        argument = arguments[0] if origin is type and arguments[0] is not Any else None
        base = cast(type | None, argument if isinstance(argument, type) else None)
        return ImportPathType(base, own_package(title))
    return None


def _container(shape: Any, arguments: tuple[Any, ...], title: str) -> FieldType | None:
    if shape is tuple and arguments and arguments[1:] != (...,):
        return TupleType(*(compile_annotation(item, title) for item in arguments))
    if shape in (list, tuple, Sequence):
        item = compile_annotation(arguments[0] if arguments else Any, title)
        return SequenceType(item, mutable=shape is list)
    if shape in (dict, Mapping) and (not arguments or arguments[0] is str):
        return MappingType(compile_annotation(arguments[1] if arguments else Any, title))
    return PatternType() if shape is re.Pattern else None


def _class(annotation: Any, title: str) -> FieldType | None:
    if not isinstance(annotation, type):
        return None
    cls = cast(Any, annotation)
    if issubclass(cls, Node):
        return SectionType((cls,))
    if issubclass(cls, Free):
        return FreeType()
    if issubclass(cls, enum.Enum):
        return EnumType(cls)
    if cls is ImportPath:
        return ImportPathType(None, own_package(title))
    if hasattr(cls, "__setpoint_scalar__"):
        return ScalarType(cls)
    return PathType() if cls.__module__.partition(".")[0] == "pathlib" else None


def _union(arguments: tuple[Any, ...], title: str) -> FieldType:
    parts = [item for item in arguments if item is not types.NoneType]
    classes = [item for item in parts if isinstance(item, type) and issubclass(item, Node)]
    if parts and len(classes) == len(parts):
        inner: FieldType = SectionType(tuple(classes))
        untagged = [cls.__name__ for cls in classes if not cls.__setpoint__.variants]
        if len(classes) > 1 and untagged:
            raise DeclarationError(f"{title}: {untagged[0]} needs a type tag to be part of a union")
    else:
        kinds = sorted((compile_annotation(item, title) for item in parts), key=_rank)
        if any(isinstance(kind, DataType) for kind in kinds):
            # All texts are accepted, and a number has one meaning in all layers.
            kinds = [kind for kind in kinds if not isinstance(kind, StrType)]
        if any(kind.nested for kind in kinds) and len(kinds) > 1:
            raise DeclarationError(f"{title}: sections and plain values cannot share one field")
        inner = kinds[0] if len(kinds) == 1 else AnyOfType(*kinds)
    if len(parts) == len(arguments):
        return inner
    if "null" in inner.candidates():
        raise DeclarationError(f"{title}: null means None, and cannot be a word as well")
    return OptionalType(inner)


def _rank(kind: FieldType) -> tuple[int, ...]:
    """The rank of a type among alternatives; lists and mappings rank by their items."""
    if isinstance(kind, DataType):
        return (len(NARROWEST_FIRST) + 1,)
    known = type(kind) in NARROWEST_FIRST
    rank = NARROWEST_FIRST.index(type(kind)) if known else len(NARROWEST_FIRST)
    return (rank, *(_rank(kind.parts[0]) if kind.parts else ()))
