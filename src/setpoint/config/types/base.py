"""The base of all field types, and the types of single values: numbers, texts, paths, classes."""

from __future__ import annotations

import enum
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from ..values.node import Node
from ..values.origin import PROGRAM, REFERENCE, Origin
from ..values.reference import Reference, is_reference, reference
from ..values.scalar import ImportPath, Scalar
from ..words.errors import WRONG_KIND, Invalid, SetpointError
from ..words.names import did_you_mean
from ..words.plain_data import (
    INFINITIES,
    MAX_BITS,
    MAX_DIGITS,
    OPENING,
    TOO_BIG,
    TOO_MANY_DIGITS,
    LiteralText,
    PlainScalar,
    escaped,
    flag_names,
    literal,
    member_text,
    plain_scalar,
    refers,
    refuse_text,
    unescaped,
)
from ..words.text import for_error, for_flag

if TYPE_CHECKING:
    from ..words.names import Path


PLAIN = frozenset({int, float, bool, str, type(None)})
"""Classes of values that hold nothing."""


class Reader(Protocol):
    """Anything that reads values: a type, or a field (a type with a range)."""

    def read(self, value: object, origin: Origin) -> Any:
        """Read a value, or raise `Invalid`."""
        ...


class FieldType:
    """Type of one annotation: reads, writes and describes its values.

    A type is made once per field and shared by all instances; it has no values.

    Arguments:
        parts: the inner types: of the items, of the alternatives, or of the optional value.
    """

    # The type in words; empty for a closed vocabulary.
    words = ""
    # The closed vocabulary.
    vocabulary: tuple[str, ...] = ()
    # The JSON Schema of the values that `read` accepts from a file, for editors; unrestricted for
    # types with parts or sections.
    json_schema: Mapping[str, Any] = {}
    # True if a text is allowed, which may contain references.
    takes_text = False
    # Openings by which a typed text is a list or mapping, if plain text is allowed as well.
    opening: tuple[str, ...] = ()
    # True if values may contain sections; walks skip other values.
    nested = False
    parts: tuple[FieldType, ...] = ()

    def __init__(self, *parts: FieldType) -> None:
        self.parts = parts
        self.nested = self.nested or any(part.nested for part in parts)

    def describe(self) -> str:
        """The type as text for help and errors, for example `a number`."""
        return self.words or f"one of: {', '.join(self.candidates())}"

    def candidates(self) -> tuple[str, ...]:
        """The closed vocabulary of the type, for suggestions and completion."""
        return self.vocabulary

    def read(self, value: object, origin: Origin) -> Any:
        """Convert a Python value, a file's value or a plain scalar to the stored value.

        Raises:
            Invalid: the value does not fit.
        """
        raise self.refuse(value)

    def refuse(self, value: object) -> Invalid:
        """The error for a value of the wrong type."""
        if self.is_secret():
            return Invalid(f"is not {self.describe()}", secret=True, kind=WRONG_KIND)
        message = f"is not {self.describe()}: got {for_error(value)}"
        return Invalid(message, self.candidates(), kind=WRONG_KIND)

    def dump(self, value: Any) -> Any:
        """Convert the value to plain data, from which `read` restores it."""
        return value

    def replace_sections(self, value: Any, function: Callable[[Any], Any]) -> Any:
        """Copy the value, replacing each section inside it."""
        return value

    def items(self, value: Any) -> Iterable[tuple[str | int, Any, FieldType]]:
        """The items of a list, tuple or mapping with their types; empty for other values."""
        return ()

    def item_type(self, key: str | int) -> FieldType | None:
        """The type of an item; None if there is none, or it depends on the value."""
        return None

    def sections(self, value: Any) -> Iterator[tuple[Path, Node]]:
        """The sections directly inside a value."""
        for key, item, kind in self.items(value):
            if not isinstance(item, Reference):
                for path, section in kind.sections(item):
                    yield (key, *path), section

    def is_container(self) -> bool:
        """True if values have items that a path can name by index or key."""
        return any(part.is_container() for part in self.parts)

    def lists_items(self, text: str) -> bool:
        """True if a text can stand for a list or mapping."""
        return any(part.lists_items(text) for part in self.parts)

    def with_items(self, value: Any, key: object) -> FieldType:
        """The type, or the alternative, through which a path continues inside a value.

        Arguments:
            value: the current value; None if there is none.
            key: the next part of the path: an index, a key, or a word that edits a list.

        Returns:
            a list or mapping type; the type itself for a single value.
        """
        return self

    def is_secret(self) -> bool:
        """True if values, or their items, may be secrets, so that no error may repeat them."""
        return any(part.is_secret() for part in self.parts)


def read_item(kind: FieldType, item: object, origin: Origin) -> Any:
    """Read a value or one item; references are kept until resolve.

    Raises:
        Invalid: the value does not fit.
    """
    if isinstance(item, Reference) and not kind.is_secret():
        return item
    if not isinstance(item, str) or OPENING not in item or kind.is_secret():
        return kind.read(plain_scalar(item), origin)
    # The items of a list on one line, as in a flag, may be references themselves.
    listed = isinstance(item, PlainScalar) and kind.lists_items(item) and not is_reference(item)
    if listed or isinstance(item, LiteralText):
        return kind.read(item, origin)
    if refers(item):
        return reference(item, kind.takes_text)
    return kind.read(unescaped(item), origin)


def dump_item(kind: FieldType, item: Any) -> Any:
    """Convert one item to plain data, and a reference to its text."""
    return item.text if isinstance(item, Reference) else kind.dump(item)


def replace_in_item(kind: FieldType, item: Any, function: Callable[[Any], Any]) -> Any:
    """Copy one item as `FieldType.replace_sections` does; references are kept."""
    return item if isinstance(item, Reference) else kind.replace_sections(item, function)


TRUTH = {
    **dict.fromkeys(("yes", "on", "1", "y", "t"), "true"),
    **dict.fromkeys(("no", "off", "0", "n", "f"), "false"),
}
"""Spellings of bool in other languages: suggested in errors, never accepted."""
GROUPED = r"[+-]?\d{1,3}(_\d{3})+([.e][^_]*)?"
"""Pattern of a number with underscores between thousands."""
TEXT = {"type": "string"}
"""JSON Schema of texts."""
FLAGS = (
    (re.ASCII, "a"),
    (re.IGNORECASE, "i"),
    (re.MULTILINE, "m"),
    (re.DOTALL, "s"),
    (re.VERBOSE, "x"),
)
"""Inline flags of Python's regular expressions; all text is Unicode."""


class IntType(FieldType):
    """Whole numbers; floats are refused, even integral ones, since they may be mistakes."""

    words = "an int"
    json_schema: Mapping[str, Any] = {"type": "integer"}

    def read(self, value: object, origin: Origin) -> int:
        number = value
        if isinstance(value, PlainScalar):
            try:
                # TOML has the prefixes, and a number has one meaning in all layers.
                number = int(_checked(value), 0 if _has_prefix(value) else 10)
            except ValueError:
                if len(value) > MAX_DIGITS and value.lstrip("+-").isdigit():
                    raise Invalid(TOO_MANY_DIGITS) from None
                # 1e6 is the usual spelling of a million tokens; it is exact if it is integral.
                number = _integral(value) if "e" in value.lower() else None
        if not isinstance(number, int) or isinstance(number, bool):
            error = self.refuse(value)
            integer = _integral(value)
            if integer is not None:
                computed = origin.layer == REFERENCE
                error.hint = "Use // for the integer quotient." if computed else f"Write {integer}."
            raise error
        if number.bit_length() > MAX_BITS:
            raise Invalid(TOO_MANY_DIGITS)
        return int(number)


class FloatType(FieldType):
    """Numbers; whole ones are accepted as floats, but NaN is refused."""

    words = "a float"
    json_schema: Mapping[str, Any] = {"type": "number"}

    def read(self, value: object, origin: Origin) -> float:
        number: Any = value
        # File formats without infinities write them as texts.
        if isinstance(value, str) and (isinstance(value, PlainScalar) or value in ("inf", "-inf")):
            number = value.lower().replace(".inf", "inf")  # YAML's spelling
        elif not isinstance(value, int | float) or isinstance(value, bool):
            raise self.refuse(value)
        try:
            if isinstance(number, str):
                number = int(_checked(number), 0) if _has_prefix(number) else _checked(number)
            number = float(number)
        except OverflowError:
            raise Invalid(TOO_BIG) from None
        except ValueError:
            raise self.refuse(value) from None
        if isinstance(value, str) and number in INFINITIES and "inf" not in value.lower():
            raise Invalid(TOO_BIG)
        if number != number:
            raise Invalid("is nan, which a configuration cannot contain")
        # Minus zero equals zero, and equal configs must have equal fingerprints.
        return number + 0.0


class BoolType(FieldType):
    """true or false; no other spelling."""

    words = "a bool"
    json_schema: Mapping[str, Any] = {"type": "boolean"}
    vocabulary = ("true", "false")

    def read(self, value: object, origin: Origin) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, PlainScalar) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        error = self.refuse(value)
        if isinstance(value, str):
            word = value.lower()
            error.hint = did_you_mean(TRUTH.get(word, word), self.vocabulary)
        raise error


class StrType(FieldType):
    """Text; a number is not accepted as text."""

    words = "a str"
    json_schema: Mapping[str, Any] = TEXT
    takes_text = True

    def read(self, value: object, origin: Origin) -> str:
        if isinstance(value, str) and not isinstance(value, enum.Enum):
            refuse_text(value)
            if "\0" in value:  # a text may name a file, a host or a metric
                raise Invalid("contains a null byte, which no path, name or variable can contain")
            return literal(value)
        raise self.refuse(value)

    def dump(self, value: str) -> str:
        return escaped(value)


class PathType(FieldType):
    """Paths of files and folders, kept as given."""

    words = "a path"
    json_schema: Mapping[str, Any] = {"type": "string", "pattern": r"^[^\u0000]+$"}
    takes_text = True

    def read(self, value: object, origin: Origin) -> Any:
        from pathlib import Path, PurePath

        if isinstance(value, PurePath):
            value = value.as_posix()
            refuse_text(value.replace(":/", "://", 1))  # the text before it became a path
        if not isinstance(value, str):
            raise self.refuse(value)
        if not value or "\0" in value:
            raise Invalid("is not a path: it is empty or contains a null byte", kind=WRONG_KIND)
        refuse_text(value)
        return Path(str(value))

    def dump(self, value: Any) -> str:
        text = escaped(value.as_posix())
        # A bare `null` would not be read back as a path.
        return f"./{text}" if text == "null" else text


class LiteralType(FieldType):
    """Literal: a closed vocabulary of str, int, float and bool."""

    def __init__(self, choices: tuple[Any, ...]) -> None:
        self.choices = choices
        self.vocabulary = tuple(map(for_flag, choices))
        self.json_schema = {"enum": list(choices)}

    def read(self, value: object, origin: Origin) -> Any:
        value = str(value) if isinstance(value, LiteralText) else value
        for choice in self.choices:
            if isinstance(value, PlainScalar):
                if for_flag(choice) == value:
                    return choice
            elif type(choice) is type(value) and choice == value:
                return choice
        raise refuse_choice(value, self.vocabulary)

    def dump(self, value: Any) -> Any:
        return escaped(value) if isinstance(value, str) else value


class EnumType(FieldType):
    """The members of an enum, by name or alias; flags may be combined, as in `READ|WRITE`."""

    def __init__(self, cls: type[enum.Enum]) -> None:
        self.cls = cls
        self.vocabulary = tuple(cls.__members__)
        self.json_schema = {"enum": list(self.vocabulary)}
        if issubclass(cls, enum.Flag):
            word = f"(?:{'|'.join(map(re.escape, self.vocabulary))})"
            pattern = rf"^(?:{word}(?: *\| *{word})*|0)$"
            self.json_schema = {"type": "string", "pattern": pattern}

    def read(self, value: object, origin: Origin) -> Any:
        members = self.cls.__members__
        if isinstance(value, self.cls):
            unnamed = flag_names(value)[1] if isinstance(value, enum.Flag) else 0
            if unnamed:  # a file has no name for these bits
                raise Invalid(f"has bits of no member, {unnamed:#b}", self.vocabulary)
            return value
        if isinstance(value, str):
            if str(value) in members:
                return members[str(value)]
            names = [] if value == "0" else [name.strip() for name in value.split("|")]
            if issubclass(self.cls, enum.Flag) and members.keys() >= {*names}:
                bits = 0
                for name in names:
                    bits |= members[name].value
                return self.cls(bits)
        raise refuse_choice(value, self.vocabulary)

    def dump(self, value: Any) -> str:
        return member_text(value)


class ScalarType(FieldType):
    """A field whose class reads and writes its own values; see `Scalar`."""

    def __init__(self, cls: type[Scalar]) -> None:
        self.cls = cls
        self.words = cls.__setpoint_scalar__
        self.vocabulary = getattr(cls, "__setpoint_candidates__", ())
        self.json_schema = getattr(cls, "__setpoint_json_schema__", {})

    def is_secret(self) -> bool:
        return getattr(self.cls, "__setpoint_secret__", False)

    def read(self, value: object, origin: Origin) -> Any:
        try:
            return self.cls.read(value)
        except Invalid as error:  # the class does not set the kind
            error.kind = WRONG_KIND
            raise

    def dump(self, value: Scalar) -> Any:
        return value.dump()


class ImportPathType(FieldType):
    """Import path of a callable, or for `type[X]` of a subclass of `base`."""

    json_schema: Mapping[str, Any] = TEXT

    def __init__(self, base: type | None = None, trusted: tuple[str, ...] = ()) -> None:
        self.base = base
        self.trusted = trusted
        self.words = "an import path such as 'package.module.name'"
        if base is not None:
            self.words = f"the import path of a subclass of {base.__name__}"

    def read(self, value: object, origin: Origin) -> ImportPath:
        base = self.base
        if not isinstance(value, str | ImportPath):
            if not callable(value):
                raise self.refuse(value)
            if base is not None and not (isinstance(value, type) and issubclass(value, base)):
                message = f"is not a subclass of {base.__name__}: got {for_error(value)}"
                raise Invalid(message, kind=WRONG_KIND)
        return ImportPath.read(value).trusting(self.trusted, base)

    def dump(self, value: ImportPath) -> str:
        return value.text


class PatternType(FieldType):
    """A regular expression of Python's `re`; flags are part of its text, as in `(?i)warmup`."""

    words = "a regular expression"
    json_schema: Mapping[str, Any] = TEXT

    def read(self, value: object, origin: Origin) -> re.Pattern[str]:
        if isinstance(value, re.Pattern):
            pattern = _from_python(cast(re.Pattern[Any], value))
        elif isinstance(value, str):
            pattern = compiled_pattern(str(value))
        else:
            raise self.refuse(value)
        if pattern.pattern == "null":  # a file would read it back as null
            raise Invalid("would be read as null", hint="Write (?:null).")
        return pattern

    def dump(self, value: re.Pattern[str]) -> str:
        return escaped(value.pattern)


def refuse_choice(value: object, choices: tuple[str, ...]) -> Invalid:
    """The error for a value outside a closed vocabulary, with the nearest word."""
    # `fp16` is not a typo of `bf16`: in names so short, with digits, each letter matters.
    is_name = len(str(value)) <= 4 and any(char.isdigit() for char in str(value))
    near = [word for word in choices if not is_name or sorted(word) == sorted(str(value).lower())]
    hint = did_you_mean(str(value), near) if isinstance(value, str) else ""
    message = f"is not one of the valid values: got {for_error(value)}"
    return Invalid(message, choices, hint=hint, kind=WRONG_KIND)


def _has_prefix(text: str) -> bool:
    """True if a text is a hexadecimal, octal or binary number."""
    return text.lstrip("+-")[:2].lower() in ("0x", "0o", "0b")


def _checked(text: str) -> str:
    """Refuse digits of other scripts and misplaced underscores such as `1_0.5`."""
    grouped = "_" not in text or _has_prefix(text) or re.fullmatch(GROUPED, text.lower())
    if not text.isascii() or not grouped:
        raise ValueError(text)
    return text


def _integral(value: object) -> int | None:
    """The int that equals a float, or its text."""
    try:
        number = float(_checked(value)) if isinstance(value, str) else value
    except ValueError:
        return None
    exact = isinstance(number, float) and number.is_integer() and abs(number) < 2**53
    return int(cast(float, number)) if exact else None


def compiled_pattern(text: str) -> re.Pattern[str]:
    """Compile a regular expression; one that causes a Python warning is refused.

    Raises:
        Invalid: the text is not a regular expression, or is ambiguous.
    """
    refuse_text(text)
    try:
        with warnings.catch_warnings():
            # Expressions that Python warns about will change their meaning.
            warnings.simplefilter("error")
            return re.compile(text)
    except re.error as error:
        place = "" if error.pos is None else f" at position {error.pos + 1}"
        message = f"is not a regular expression: {error.msg}{place}"
        raise Invalid(message, kind=WRONG_KIND) from None
    except (OverflowError, RecursionError, MemoryError) as error:
        raise Invalid(f"is not a regular expression that can be compiled: {error}") from None
    except Warning as warning:
        raise Invalid(f"is an ambiguous regular expression: {warning}") from None


def _from_python(pattern: re.Pattern[Any]) -> re.Pattern[str]:
    """Write the flags of an expression into its text, so that records keep them."""
    text = pattern.pattern
    if not isinstance(text, str):
        raise Invalid("is a pattern of bytes; give a pattern of str")
    missing = pattern.flags & ~compiled_pattern(text).flags
    letters = "".join(letter for flag, letter in FLAGS if missing & flag)
    if missing and not letters:
        raise Invalid("has flags that cannot be written inline in the expression")
    return compiled_pattern(f"(?{letters}){text}" if letters else text)


def takes(kind: Reader, value: object) -> bool:
    """True if a field, or a type, accepts a value."""
    try:
        kind.read(value, Origin(PROGRAM))
    except SetpointError:
        return False
    return True
