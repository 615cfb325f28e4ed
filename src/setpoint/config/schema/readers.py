"""Quick readers: they take the values that need no closer look, and doubt all others.

What a reader doubts is read by the field's type, which alone knows what is wrong with a value. Most
values of a file are plain, and reading them so takes a fifth of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from ..types.base import FieldType
from ..types.containers import OptionalType, SequenceType, TupleType
from ..types.scalars import BoolType, FloatType, IntType, LiteralType, StrType
from ..words.credentials import suspicious
from ..words.texts import OPENING
from .bounds import Bounds

DOUBT: Any = object()
Reader = Callable[[Any], Any]
EXACT = 2**53  # up to here every whole number is a float
WIDE = 2**64


def doubts(value: Any) -> Any:
    """The reader of fields whose values always need a closer look."""
    return DOUBT


def reader_of(kind: FieldType, bounds: Bounds | None, items: Bounds | None) -> Reader:
    """What reads the plain values of a field as `FieldInfo.read` would, and doubts the others."""
    return _reader(kind, bounds, items) or doubts


def _reader(kind: FieldType, bounds: Bounds | None, items: Bounds | None) -> Reader | None:
    if isinstance(kind, OptionalType):
        return _optional_reader(_reader(kind.inner, bounds, items))
    if isinstance(kind, SequenceType | TupleType) and bounds is None:
        return _sequence_reader(kind, items)
    if items is not None or (bounds is not None and bounds.pattern is not None):
        return None
    if type(kind) is IntType:
        return _int_reader(bounds)
    if type(kind) is FloatType:
        return _float_reader(bounds)
    if bounds is not None:
        return None
    if type(kind) is BoolType:
        return lambda value: value if value.__class__ is bool else DOUBT
    if type(kind) is StrType:
        return _text
    if type(kind) is LiteralType and all(type(choice) is str for choice in kind.choices):
        words = frozenset(cast(tuple[str, ...], kind.choices))
        return lambda value: value if value.__class__ is str and value in words else DOUBT
    return None


def _optional_reader(inner: Reader | None) -> Reader | None:
    if inner is None:
        return None

    def read(value: Any) -> Any:
        if value is None:
            return None
        return DOUBT if value.__class__ is str and value == "null" else inner(value)

    return read


def _text(value: Any) -> Any:
    """A text of printable ASCII that is no reference and looks like no credential."""
    if (
        value.__class__ is str
        and value.isascii()
        and value.isprintable()
        and OPENING not in value
        and not suspicious(value)
    ):
        return value
    return DOUBT


def _int_reader(bounds: Bounds | None) -> Reader:
    low, high = (bounds or Bounds()).within(-WIDE, WIDE)
    return lambda value: value if value.__class__ is int and low <= value <= high else DOUBT


def _float_reader(bounds: Bounds | None) -> Reader:
    low, high = (bounds or Bounds()).within()

    def read(value: Any) -> Any:
        if value.__class__ is not float:
            if value.__class__ is not int or not -EXACT < value < EXACT:
                return DOUBT
            value = float(value)
        # Not a number lies nowhere; and minus zero equals zero.
        return value + 0.0 if low <= value <= high else DOUBT

    return read


def _sequence_reader(kind: SequenceType | TupleType, bounds: Bounds | None) -> Reader | None:
    if isinstance(kind, TupleType):
        kinds = [_reader(inner, bounds, None) for inner in kind.kinds]
        if None in kinds:
            return None
        readers = cast(list[Reader], kinds)

        def read_tuple(value: Any) -> Any:
            if value.__class__ not in (list, tuple) or len(value) != len(readers):
                return DOUBT
            found = tuple([read(item) for read, item in zip(readers, value, strict=True)])
            return DOUBT if DOUBT in found else found

        return read_tuple
    item = _reader(kind.item, bounds, None)
    if item is None:
        return None

    def read_all(value: Any) -> Any:
        if value.__class__ not in (list, tuple):
            return DOUBT
        found = [item(one) for one in value]
        return DOUBT if DOUBT in found else kind.own(found)

    return read_all
