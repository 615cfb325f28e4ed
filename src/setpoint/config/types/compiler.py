"""From a field's annotation to its type; done once per field, when it is first needed."""

from __future__ import annotations

import enum
import sys
import types
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from .base import FieldType
from .containers import AnyOfType, MappingType, OptionalType, SequenceType, TupleType
from .scalars import BoolType, EnumType, FloatType, IntType, LiteralType, PathType, StrType
from .sections import SectionType
from .special import AnyType, FreeType, ScalarType

if TYPE_CHECKING:
    from ..field import FieldInfo

SIMPLE: dict[object, FieldType] = {
    int: IntType(),
    float: FloatType(),
    bool: BoolType(),
    str: StrType(),
    Any: AnyType(),
    object: AnyType(),
}


def compile_field(info: FieldInfo) -> FieldType:
    """The type of a field.

    Arguments:
        info: the field, with its annotation as written.

    Returns:
        the type.

    Raises:
        TypeError: if the annotation is not one a config can have, with class and field named.
    """
    where = f"{info.owner.__module__}.{info.owner.__qualname__}.{info.name}"
    annotation = info.annotation
    if isinstance(annotation, str):
        module = vars(sys.modules[info.owner.__module__])
        names = {**(info.namespace or {}), **vars(info.owner), info.owner.__name__: info.owner}
        try:
            annotation = eval(annotation, dict(module), names)
        except NameError as error:
            raise TypeError(
                f"{where}: the annotation {annotation!r} names {error.name!r}, which "
                f"the module does not import at run time"
            ) from None
    return compile_annotation(annotation, where)


def compile_annotation(annotation: Any, where: str) -> FieldType:
    """The type that an annotation stands for.

    Arguments:
        annotation: a class or a form of `typing`.
        where: the field's full name, for errors.

    Returns:
        the type.

    Raises:
        TypeError: if it is not one a config can have.
    """
    from ..base import Config
    from ..free import Free

    simple = SIMPLE.get(annotation) if not isinstance(annotation, list) else None
    if simple is not None:
        return simple
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return compile_annotation(arguments[0], where)
    if origin is typing.Literal:
        return LiteralType(arguments)
    if origin is typing.Union or origin is types.UnionType:
        return _union(arguments, where)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return SequenceType(compile_annotation(arguments[0], where), mutable=False)
    if origin is tuple:
        return TupleType(tuple(compile_annotation(item, where) for item in arguments))
    if origin is list:
        return SequenceType(compile_annotation(arguments[0], where), mutable=True)
    if origin in (dict, Mapping) and arguments[0] is str:
        return MappingType(compile_annotation(arguments[1], where))
    if isinstance(annotation, type):
        if issubclass(annotation, Config):
            return SectionType((annotation,))
        if issubclass(annotation, Free):
            return FreeType()
        if issubclass(annotation, enum.Enum):
            return EnumType(annotation)
        if hasattr(cast(Any, annotation), "__setpoint_scalar__"):
            return ScalarType(cast(Any, annotation))
        if annotation.__module__.partition(".")[0] == "pathlib":
            return PathType()
    raise TypeError(f"{where}: {annotation!r} cannot be the type of a config's field")


def _union(arguments: tuple[Any, ...], where: str) -> FieldType:
    from ..base import Config

    parts = [item for item in arguments if item is not types.NoneType]
    classes = [item for item in parts if isinstance(item, type) and issubclass(item, Config)]
    if parts and len(classes) == len(parts):
        inner: FieldType = SectionType(tuple(classes))
        untagged = [cls.__name__ for cls in classes if not cls.__setpoint__.variants]
        if len(classes) > 1 and untagged:
            raise TypeError(f"{where}: {untagged[0]} needs a type tag to be part of a union")
    else:
        kinds = tuple(compile_annotation(item, where) for item in parts)
        # A whole number fits a float as well, so the narrower type is asked first.
        order = (BoolType, IntType, FloatType, ScalarType, LiteralType, EnumType)
        rank: dict[type[FieldType], int] = {kind: at for at, kind in enumerate(order)}
        kinds = tuple(sorted(kinds, key=lambda kind: rank.get(type(kind), len(order))))
        if any(kind.nested for kind in kinds) and len(kinds) > 1:
            raise TypeError(f"{where}: sections and plain values cannot share one field")
        inner = kinds[0] if len(kinds) == 1 else AnyOfType(kinds)
    return OptionalType(inner) if len(parts) < len(arguments) else inner
