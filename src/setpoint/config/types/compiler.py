"""From a field's annotation to its type, and whether what stands beside it fits; done once."""

from __future__ import annotations

import enum
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from ..values.containers import Free
from ..values.node import Node
from ..words.errors import DeclarationError
from .base import FieldType
from .containers import AnyOfType, MappingType, OptionalType, SequenceType, TupleType
from .scalars import BoolType, EnumType, FloatType, IntType, LiteralType, PathType, StrType
from .sections import SectionType
from .special import AnyType, DataType, FreeType, ImportPathType, PatternType, ScalarType

Shape = TypeVar("Shape")
Result = TypeVar("Result")
SIMPLE: dict[object, FieldType] = {
    int: IntType(),
    float: FloatType(),
    bool: BoolType(),
    str: StrType(),
    Any: AnyType(),
    object: AnyType(),
}
BYTES = (bytes, bytearray)

if TYPE_CHECKING:
    from functools import partial

    class Component(Generic[Shape, Result]):
        """A field that holds a config and takes a `partial` as well; see `component`."""

        @overload
        def __get__(self, instance: None, owner: object) -> Any: ...
        @overload
        def __get__(self, instance: object, owner: object) -> Shape: ...
        def __get__(self, instance: Any, owner: Any) -> Any: ...
        def __set__(self, instance: object, value: Shape | partial[Result]) -> None: ...

else:

    class Component(Generic[Shape, Result]):
        """A field that holds a config and takes a `partial` as well; see `component`."""


def own_package(where: str) -> tuple[str, ...]:
    """What a class trusts as the origin of callables: the package that declares it.

    Returns:
        the package; nothing for Setpoint's own, which has functions that import anything.
    """
    package = where.partition(".")[0]
    return () if package in ("setpoint", "__main__") else (package,)


WRAPPERS = {
    "Annotated": "what stands beside the type has no effect here. Write limits, role and names as "
    "x: int = field(ge=0), and text as a docstring under the field",
    "Final": "layers set every field; annotate a constant with ClassVar[...]",
    "InitVar": "a config has no arguments beside its fields; hand it to build(...), or declare a "
    "field",
    **dict.fromkeys(
        ("Required", "NotRequired"),
        "a field is required if it has no default; write the type alone",
    ),
    "ReadOnly": "drafts can be changed, and resolved configs cannot; write the type alone",
    "Unpack": "write a tuple of the items",
}
"""What is written around a type elsewhere, with the reason why a field cannot have it."""


def wrapper_of(annotation: Any) -> str:
    """The word of `WRAPPERS` that an annotation begins with; empty if there is none.

    Arguments:
        annotation: an object, or the text of one.
    """
    if isinstance(annotation, str):
        word = annotation.partition("[")[0].rpartition(".")[2]
    else:
        origin = typing.get_origin(annotation) or annotation
        kind = type(origin).__name__  # of `InitVar[int]`
        word = (
            kind
            if kind in WRAPPERS
            else getattr(origin, "_name", None) or getattr(origin, "__name__", "")
        )
    return word if word in WRAPPERS else ""


def compile_annotation(annotation: Any, where: str) -> FieldType:
    """The type that an annotation stands for.

    Raises:
        TypeError: if it is not one a config can have.
    """
    try:
        simple = SIMPLE.get(annotation)
    except TypeError:  # what cannot be hashed is no type, or is one with something beside it
        simple = None
    if simple is not None:
        return simple
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if wrapper_of(annotation):
        raise refused(annotation, where)
    if origin is Component and arguments[0] is not Any:
        return compile_annotation(arguments[0], where)
    if origin is typing.Literal:
        return LiteralType(arguments)
    if origin is typing.Union or origin is types.UnionType:
        return _union(arguments, where)
    shape = origin or annotation
    if shape is tuple and arguments and (len(arguments) != 2 or arguments[1] is not Ellipsis):
        return TupleType(tuple(compile_annotation(item, where) for item in arguments))
    if shape in (list, tuple, Sequence):
        item = compile_annotation(arguments[0] if arguments else Any, where)
        return SequenceType(item, mutable=shape is list)
    if shape in (dict, Mapping) and (not arguments or arguments[0] is str):
        return MappingType(compile_annotation(arguments[1] if arguments else Any, where))
    if hasattr(annotation, "__supertype__"):  # a NewType is for type checkers
        return compile_annotation(annotation.__supertype__, where)
    if type(annotation).__name__ == "TypeAliasType":  # of `type Name = ...`
        return compile_annotation(annotation.__value__, where)
    if origin is type or origin is Callable or annotation in (Callable, type):
        wanted = arguments[0] if origin is type else None
        is_class = isinstance(wanted, type) and wanted is not Any
        base = cast(type | None, wanted if is_class else None)
        return ImportPathType(base, own_package(where))
    if shape is re.Pattern:
        return PatternType()
    if isinstance(annotation, type):
        if issubclass(annotation, Node):
            return SectionType((annotation,))
        if issubclass(annotation, Free):
            return FreeType()
        if issubclass(annotation, enum.Enum):
            return EnumType(annotation)
        if hasattr(cast(Any, annotation), "__setpoint_scalar__"):
            if annotation.__name__ == "ImportPath":
                return ImportPathType(None, own_package(where))
            return ScalarType(cast(Any, annotation))
        if annotation.__module__.partition(".")[0] == "pathlib":
            return PathType()
    raise refused(annotation, where)


def refused(annotation: Any, where: str) -> DeclarationError:
    """The error for an annotation that no field can have."""
    origin = typing.get_origin(annotation) or annotation
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    wrapper = wrapper_of(annotation)
    if wrapper:
        text, reason = f"{wrapper}[...]", WRAPPERS[wrapper]
    elif origin in (dict, Mapping):
        reason = "the keys of a mapping are str; write dict[str, ...]"
    elif origin in (set, frozenset):
        reason = "files have no sets; write tuple[X, ...], and @check that no item comes twice"
    elif origin is complex:
        reason = "files have no such numbers; write tuple[float, float]"
    elif getattr(origin, "__module__", "") in ("datetime", "decimal") or origin in BYTES:
        reason = "not every file format has such values; write str, and convert it in a method"
    elif hasattr(annotation, "__dataclass_fields__"):
        reason = "a dataclass is not a section; derive it from setpoint.Config"
    elif isinstance(origin, type) and issubclass(origin, Node):
        reason = "write the class without brackets, or a subclass that says what stands in them"
    elif isinstance(annotation, typing.TypeVar):
        reason = "a type variable is not known at run time; write the type itself"
    else:
        reason = (
            "valid are int, float, bool, str, Path, Literal, Enum, Any, lists, tuples and dicts "
            "of these, config classes, ... | None, and classes with __setpoint_scalar__"
        )
    return DeclarationError(f"{where}: {text} cannot be the type of a config's field: {reason}")


def _union(arguments: tuple[Any, ...], where: str) -> FieldType:
    parts = [item for item in arguments if item is not types.NoneType]
    classes = [item for item in parts if isinstance(item, type) and issubclass(item, Node)]
    if parts and len(classes) == len(parts):
        inner: FieldType = SectionType(tuple(classes))
        untagged = [cls.__name__ for cls in classes if not cls.__setpoint__.variants]
        if len(classes) > 1 and untagged:
            raise DeclarationError(f"{where}: {untagged[0]} needs a type tag to be part of a union")
    else:
        kinds = sorted((compile_annotation(item, where) for item in parts), key=_rank)
        if any(isinstance(kind, DataType) for kind in kinds):
            # Any text is data, so that a number means the same wherever it is typed.
            kinds = [kind for kind in kinds if not isinstance(kind, StrType)]
        if any(kind.nested for kind in kinds) and len(kinds) > 1:
            raise DeclarationError(f"{where}: sections and plain values cannot share one field")
        inner = kinds[0] if len(kinds) == 1 else AnyOfType(kinds)
    if len(parts) == len(arguments):
        return inner
    if "null" in inner.candidates():
        raise DeclarationError(f"{where}: null stands for None, and cannot be a word as well")
    return OptionalType(inner)


# A whole number fits a float as well, so the narrower type is asked first.
_ORDER = (BoolType, IntType, FloatType, ScalarType, LiteralType, EnumType)
_RANKS: dict[type[FieldType], int] = {kind: at for at, kind in enumerate(_ORDER)}


def _rank(kind: FieldType) -> tuple[int, ...]:
    """The place of a type among alternatives; lists and mappings stand by what is in them."""
    if isinstance(kind, DataType):
        return (len(_ORDER) + 1,)
    inner = kind.inner_types()
    return (_RANKS.get(type(kind), len(_ORDER)), *(_rank(inner[0]) if inner else ()))
