"""From a field's annotation to its type, and whether what stands beside it fits; done once."""

from __future__ import annotations

import builtins
import enum
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ..errors import DeclarationError, Invalid
from ..field import MISSING
from ..typed import Component
from .base import FieldType
from .containers import (
    AnyOfType,
    MappingType,
    OptionalType,
    SequenceType,
    TupleType,
    name_containers,
)
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


BYTES = (bytes, bytearray)


class ForTypeCheckers(dict[str, Any]):
    """Names of a module, in which those that it does not import stand for anything."""

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            raise KeyError(name)
        return Any


def compile_field(info: FieldInfo) -> FieldType:
    """The type of a field.

    Arguments:
        info: the field, with its annotation as written.

    Returns:
        the type.

    Raises:
        TypeError: if the annotation is not one a config can have, with class and field named.
    """
    where, annotation = info.full_name, info.annotation
    if isinstance(annotation, str):
        module = vars(sys.modules[info.owner.__module__])
        names = {**(info.namespace or {}), **vars(info.owner), info.owner.__name__: info.owner}
        if annotation.startswith(("Component[", "sp.Component[", "setpoint.Component[")):
            # What it builds is for type checkers, and may be imported for them only.
            names = ForTypeCheckers({**module, **names})
        try:
            annotation = eval(annotation, dict(module), names)
        except NameError as error:
            raise DeclarationError(
                f"{where}: the annotation {annotation!r} names {error.name!r}, which "
                f"the module does not import at run time"
            ) from None
        except Exception as error:  # whatever Python has against the expression
            raise DeclarationError(
                f"{where}: the annotation {annotation!r} cannot be read: {error}"
            ) from None
    kind = compile_annotation(annotation, where)
    name_containers(kind, f"{info.owner.__name__}.{info.name}")
    if (info.bounds, info.item_bounds, info.before) != (None, None, MISSING):
        check_declaration(info, kind)
    return kind


def own_package(where: str) -> tuple[str, ...]:
    """What a class trusts as the origin of callables: the package that declares it.

    Arguments:
        where: the full name of the class or field.

    Returns:
        the package; nothing for Setpoint's own, which has functions that import anything.
    """
    package = where.partition(".")[0]
    return () if package in ("setpoint", "__main__") else (package,)


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

    try:
        simple = SIMPLE.get(annotation)
    except TypeError:  # what cannot be hashed is no type, or is one with something beside it
        simple = None
    if simple is not None:
        return simple
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated or (origin is Component and arguments[0] is not Any):
        return compile_annotation(arguments[0], where)
    if origin is typing.Literal:
        return LiteralType(arguments)
    if origin is typing.Union or origin is types.UnionType:
        return _union(arguments, where)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return SequenceType(compile_annotation(arguments[0], where), mutable=False)
    if origin is tuple and arguments:
        return TupleType(tuple(compile_annotation(item, where) for item in arguments))
    if origin is list and arguments:
        return SequenceType(compile_annotation(arguments[0], where), mutable=True)
    if origin is Sequence and arguments:
        return SequenceType(compile_annotation(arguments[0], where), mutable=False)
    if origin in (dict, Mapping) and arguments and arguments[0] is str:
        return MappingType(compile_annotation(arguments[1], where))
    if not arguments and (origin or annotation) in (list, tuple, Sequence):
        return SequenceType(SIMPLE[Any], mutable=(origin or annotation) is list)
    if not arguments and (origin or annotation) in (dict, Mapping):
        return MappingType(SIMPLE[Any])
    if hasattr(annotation, "__supertype__"):  # a NewType is for type checkers
        return compile_annotation(annotation.__supertype__, where)
    if origin is type or origin is Callable or annotation in (Callable, type):
        from .callables import ImportPathType

        wanted = arguments[0] if origin is type else None
        is_class = isinstance(wanted, type) and wanted is not Any
        base = cast(type | None, wanted if is_class else None)
        return ImportPathType(base, own_package(where))
    if (origin or annotation) is re.Pattern:
        from .pattern import PatternType

        return PatternType()
    if isinstance(annotation, type):
        if issubclass(annotation, Config):
            return SectionType((annotation,))
        if issubclass(annotation, Free):
            return FreeType()
        if issubclass(annotation, enum.Enum):
            return EnumType(annotation)
        if hasattr(cast(Any, annotation), "__setpoint_scalar__"):
            if annotation.__name__ == "ImportPath":
                from .callables import ImportPathType

                return ImportPathType(None, own_package(where))
            return ScalarType(cast(Any, annotation))
        if annotation.__module__.partition(".")[0] == "pathlib":
            return PathType()
    raise refused(annotation, where)


def refused(annotation: Any, where: str) -> DeclarationError:
    """The error for an annotation that no field can have.

    Arguments:
        annotation: a class or a form of `typing`.
        where: the field's full name.

    Returns:
        the error, with what would be valid instead.
    """
    origin = typing.get_origin(annotation) or annotation
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    if origin in (dict, Mapping):
        reason = "the keys of a mapping are texts; write dict[str, ...]"
    elif origin in (set, frozenset):
        reason = "files have no sets; write tuple[X, ...], and @check that no item comes twice"
    elif origin is complex:
        reason = "files have no such numbers; write tuple[float, float]"
    elif getattr(origin, "__module__", "") in ("datetime", "decimal") or origin in BYTES:
        reason = "not every file has such values; write str, and read it in a method"
    elif hasattr(annotation, "__dataclass_fields__"):
        reason = "a dataclass is no section; derive it from setpoint.Config"
    elif isinstance(annotation, typing.TypeVar):
        reason = "a type variable is not known at run time; write the type itself"
    else:
        reason = (
            "valid are int, float, bool, str, Path, Literal, Enum, Any, lists, tuples and dicts "
            "of these, config classes, ... | None, and classes with __setpoint_scalar__"
        )
    return DeclarationError(f"{where}: {text} cannot be the type of a config's field: {reason}")


def _union(arguments: tuple[Any, ...], where: str) -> FieldType:
    from ..base import Config

    parts = [item for item in arguments if item is not types.NoneType]
    classes = [item for item in parts if isinstance(item, type) and issubclass(item, Config)]
    if parts and len(classes) == len(parts):
        inner: FieldType = SectionType(tuple(classes))
        untagged = [cls.__name__ for cls in classes if not cls.__setpoint__.variants]
        if len(classes) > 1 and untagged:
            raise DeclarationError(f"{where}: {untagged[0]} needs a type tag to be part of a union")
    else:
        kinds = tuple(compile_annotation(item, where) for item in parts)
        # A whole number fits a float as well, so the narrower type is asked first.
        order = (BoolType, IntType, FloatType, ScalarType, LiteralType, EnumType)
        rank: dict[type[FieldType], int] = {kind: at for at, kind in enumerate(order)}
        kinds = tuple(sorted(kinds, key=lambda kind: rank.get(type(kind), len(order))))
        if any(kind.nested for kind in kinds) and len(kinds) > 1:
            raise DeclarationError(f"{where}: sections and plain values cannot share one field")
        inner = kinds[0] if len(kinds) == 1 else AnyOfType(kinds)
    return OptionalType(inner) if len(parts) < len(arguments) else inner


def check_declaration(info: FieldInfo, kind: FieldType) -> None:
    """Refuse limits that would be held against nothing, and a wrong value of older runs.

    Arguments:
        info: the field.
        kind: its type.

    Raises:
        DeclarationError: with the class and the field named.
    """
    bounds, items = info.bounds, info.item_bounds
    if bounds is not None and bounds.limited and not _may_be(kind, (int, float)):
        inside = _items(kind)
        hint = "; limits of the items are item_gt, item_ge, item_lt, item_le" if inside else ""
        raise _error(info, f"gt, ge, lt and le are for numbers, and it is {kind.describe()}{hint}")
    if bounds is not None and bounds.pattern is not None:
        if not _may_be(kind, (str,)):
            raise _error(info, f"a pattern is for texts, and it is {kind.describe()}")
        _check_pattern(info, bounds.pattern)
    if items is not None and not any(_may_be(item, (int, float)) for item in _items(kind)):
        raise _error(
            info,
            f"item_gt, item_ge, item_lt and item_le are for lists and mappings of numbers, and it "
            f"is {kind.describe()}",
        )
    # Where there was nothing before, null says so.
    if info.before not in (MISSING, None) and not kind.nested:
        _check_before(info, kind)


def _check_pattern(info: FieldInfo, pattern: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise _error(info, f"the pattern {pattern!r} is no regular expression: {error}") from None


def _check_before(info: FieldInfo, kind: FieldType) -> None:
    from ..origin import DEFAULT, Origin

    try:
        kind.read(info.before, Origin(DEFAULT))
    except Invalid as error:
        raise _error(info, f"before={info.before!r} {error.message}") from None


def _error(info: FieldInfo, reason: str) -> DeclarationError:
    return DeclarationError(f"{info.full_name}: {reason}")


def _may_be(kind: FieldType, classes: tuple[type, ...]) -> bool:
    """Whether values, apart from their items, may be of one of some plain classes."""
    if isinstance(kind, IntType):
        return int in classes
    if isinstance(kind, FloatType):
        return float in classes
    if isinstance(kind, StrType):
        return str in classes
    if isinstance(kind, AnyType):
        return True
    if isinstance(kind, LiteralType):
        return any(isinstance(choice, classes) for choice in kind.choices)
    if isinstance(kind, ScalarType):
        return issubclass(kind.cls, classes)
    return not kind_has_items(kind) and any(_may_be(part, classes) for part in kind.parts())


def kind_has_items(kind: FieldType) -> bool:
    """Whether the parts of a type are those of its items, and not alternatives.

    Arguments:
        kind: a type.

    Returns:
        True for lists, tuples and mappings themselves.
    """
    return isinstance(kind, SequenceType | TupleType | MappingType)


def _items(kind: FieldType) -> tuple[FieldType, ...]:
    """The types of items, through options and alternatives."""
    if kind_has_items(kind):
        return kind.parts()
    return tuple(item for part in kind.parts() for item in _items(part))
