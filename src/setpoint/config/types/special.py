"""Types that bring their own reading and writing, and the free area."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from ..values.containers import Free, read_plain
from ..values.scalar import ImportPath, Scalar
from ..words.errors import Invalid
from ..words.plain_data import (
    escaped,
    is_text,
    literal,
    plain,
)
from ..words.text import DATA, for_error
from .base import FieldType
from .containers import ADDING, MappingType, SequenceType
from .scalars import NOT_TEXT

if TYPE_CHECKING:
    from ..values.origin import Origin

LENGTH = 1000  # a longer expression is a mistake, and compiling it may take long
# Python's flags as they are written inside an expression; all texts are Unicode anyway.
FLAGS = (
    (re.ASCII, "a"),
    (re.IGNORECASE, "i"),
    (re.MULTILINE, "m"),
    (re.DOTALL, "s"),
    (re.VERBOSE, "x"),
)


class ScalarType(FieldType):
    """A field whose class reads and writes its own values.

    Arguments:
        cls: the value class; its `__setpoint_scalar__` describes it in words.
    """

    __slots__ = ("cls",)

    def __init__(self, cls: type[Scalar]) -> None:
        self.cls = cls

    def describe(self) -> str:
        return self.cls.__setpoint_scalar__

    def is_secret(self) -> bool:
        return getattr(self.cls, "__setpoint_secret__", False)

    def candidates(self) -> tuple[str, ...]:
        return getattr(self.cls, "__setpoint_candidates__", ())

    def read(self, value: object, origin: Origin) -> Any:
        return self.cls.read(value)

    def dump(self, value: Scalar) -> Any:
        return value.dump()


class FreeType(FieldType):
    """The user's own area: any keys, any plain values."""

    __slots__ = ()
    words = "any keys with plain values"

    def read(self, value: object, origin: Origin) -> Any:
        return Free.read(value, origin)

    def dump(self, value: Any) -> Any:
        return value.dump()

    def replace_sections(self, value: Any, function: object, frozen: bool) -> Any:
        return value.copy(frozen)


class DataType(FieldType):
    """Plain data inside a list or mapping of no declared type, where `${` is ordinary text."""

    __slots__ = ()
    words = "plain data"
    opening = DATA

    def is_container(self) -> bool:
        return True

    def lists_items(self, text: str) -> bool:
        return text.startswith(DATA)

    def with_items(self, value: Any, key: object) -> FieldType:
        if isinstance(value, Mapping) or (value is None and key not in ADDING):
            return MappingType(DataType())
        return (
            SequenceType(DataType(), False) if value is None or isinstance(value, tuple) else self
        )

    def read(self, value: object, origin: Origin) -> Any:
        return read_plain(value)

    def dump(self, value: Any) -> Any:
        return plain(value)


class AnyType(DataType):
    """Plain data of any kind, where a field is declared as `Any` or `object`."""

    __slots__ = ()

    def read(self, value: object, origin: Origin) -> Any:
        data = read_plain(value)
        return literal(data) if isinstance(data, str) else data


class ImportPathType(FieldType):
    """A callable or a class by its import path.

    Arguments:
        base: for `type[X]` the class that it must be or derive from; None for any callable.
        trusted: the modules that the declaring class trusts: its own package.
    """

    __slots__ = ("base", "trusted")

    def __init__(self, base: type | None = None, trusted: tuple[str, ...] = ()) -> None:
        self.base = base
        self.trusted = trusted

    def describe(self) -> str:
        if self.base is None:
            return "an import path such as 'package.module.name'"
        return f"the import path of a subclass of {self.base.__name__}"

    def read(self, value: object, origin: Origin) -> ImportPath:
        wanted = self.base
        if not isinstance(value, str | ImportPath):
            if not callable(value):
                raise self.refuse(value)
            if wanted is not None and not (isinstance(value, type) and issubclass(value, wanted)):
                raise Invalid(f"is not a subclass of {wanted.__name__}: got {for_error(value)}")
        return ImportPath.read(value).trusting(self.trusted, wanted)

    def dump(self, value: ImportPath) -> str:
        return value.text


class PatternType(FieldType):
    """A regular expression of Python's `re`; flags are part of its text, as in `(?i)warmup`."""

    __slots__ = ()
    words = "a regular expression"

    def read(self, value: object, origin: Origin) -> re.Pattern[str]:
        if isinstance(value, re.Pattern):
            return _from_python(cast(re.Pattern[Any], value))
        if not isinstance(value, str):
            raise self.refuse(value)
        return _compiled(str(value))

    def dump(self, value: re.Pattern[str]) -> str:
        return escaped(value.pattern)


def _compiled(text: str) -> re.Pattern[str]:
    if len(text) > LENGTH:
        raise Invalid(f"is too long for an expression: {len(text)} of at most {LENGTH} characters")
    if not is_text(text):
        raise Invalid(NOT_TEXT)
    if text == "null":  # read back from a file, it would mean something else
        raise Invalid("would be read as null", hint="Write (?:null).")
    try:
        with warnings.catch_warnings():
            # What Python warns about today means something else tomorrow.
            warnings.simplefilter("error")
            return re.compile(text)
    except re.error as error:
        place = "" if error.pos is None else f" at position {error.pos + 1}"
        raise Invalid(f"is not a regular expression: {error.msg}{place}") from None
    except (OverflowError, RecursionError, MemoryError) as error:
        raise Invalid(f"is not a regular expression that can be compiled: {error}") from None
    except Warning as warning:
        raise Invalid(f"is an ambiguous regular expression: {warning}") from None


def _from_python(pattern: re.Pattern[Any]) -> re.Pattern[str]:
    """The same expression with its flags inside its text, where a record keeps them."""
    text = pattern.pattern
    if not isinstance(text, str):
        raise Invalid("is a pattern of bytes; give a pattern of str")
    compiled = _compiled(text)
    missing = pattern.flags & ~compiled.flags
    if not missing:
        return compiled
    letters = "".join(letter for flag, letter in FLAGS if missing & flag)
    if not letters:
        raise Invalid("has flags that cannot be written inside an expression")
    # Flags stand at the very beginning, and in one group.
    rest = f"{letters}{text[2:]}" if re.match(r"\(\?[aimsxLu]+\)", text) else f"{letters}){text}"
    return _compiled(f"(?{rest}")
