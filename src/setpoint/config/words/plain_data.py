"""Plain values: unread text, missing values, lists and mappings, and JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, Flag
from typing import Any, cast

from .errors import Invalid, SetpointError, credential_in
from .names import Path

MAX_DEPTH = 64  # nested mappings and lists, including the file itself
MAX_DIGITS = 4300  # of an integer; the limit of Python
MAX_BITS = 14_284  # integers with at most this many bits have at most MAX_DIGITS digits
MAX_NESTING = 16  # nested `extends` of files
# The readers share these messages, so that the same mistake gives the same message.
TOO_BIG = "is too large for a floating-point number"
TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
TOO_LONG = f"a number of {{}} digits is refused; at most {MAX_DIGITS} are read"
TOO_MANY_DIGITS = "has more digits than can be written to a file"
HALF_PAIR = "the text holds half a surrogate pair, which is not a character"
KERNEL = "setpoint.config."
OPENING = "${"
ESCAPED = "$${"
INFINITIES = (float("inf"), float("-inf"))
_PLAIN = frozenset((bool, int, str))
# Plain scalars of the core schema of YAML 1.2.2, section 10.3.2, except null, which the reader
# handles.
_TRUE = ("true", "True", "TRUE")
_FALSE = ("false", "False", "FALSE")
_INFINITE = r"[-+]?\.(inf|Inf|INF)"
_NAN = r"\.(nan|NaN|NAN)"
_DECIMAL = r"[-+]?[0-9]+"
_PREFIXED = r"0o[0-7]+|0x[0-9a-fA-F]+"
_FLOAT = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"


class Missing:
    """The type of `MISSING`, which stands for "no value", since None is a value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()


class PlainScalar(str):
    """Unquoted text from a file, flag or variable, to be read by the type of its field."""

    __slots__ = ()


def guess(text: PlainScalar) -> bool | int | float | str:
    """The value of a plain scalar without a field type.

    Raises:
        SetpointError: the text is an integer of more than 4,300 decimal digits, or a number beyond
            the largest float, which must not become infinite silently.
    """
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if re.fullmatch(f"{_DECIMAL}|{_PREFIXED}", text):
        digits = len(text.lstrip("+-").removeprefix("0x").removeprefix("0o"))
        if digits > MAX_DIGITS:
            raise SetpointError(TOO_LONG.format(digits))
        number = int(text, 0 if text[:2] in ("0x", "0o") else 10)
        if number.bit_length() > MAX_BITS:  # hexadecimal digits have more bits than decimal ones
            raise SetpointError(TOO_MANY_DIGITS)
        return number
    if re.fullmatch(f"{_INFINITE}|{_NAN}", text):
        return float(text.replace(".", ""))
    if not re.fullmatch(_FLOAT, text):
        return str(text)
    number = float(text)
    if number in INFINITIES:
        raise SetpointError(TOO_BIG)
    return number


class LiteralText(str):
    """A str value with a literal `${`.

    It equals any other str with the same text, and can be assigned to other fields.
    """

    __slots__ = ()


def literal(text: str) -> str:
    """The stored form of a text without references: a `LiteralText` if it contains `${`."""
    return LiteralText(text) if OPENING in text else str(text)


def escaped(text: str) -> str:
    """The escaped text, as written in files, flags and Python."""
    return text.replace(OPENING, ESCAPED)


def unescaped(text: str) -> LiteralText:
    """The text without escapes."""
    return LiteralText(text.replace(ESCAPED, OPENING))


def refers(text: str) -> bool:
    """True if a text is, or tries to be, a reference: it contains an unescaped `${`."""
    if OPENING not in text or isinstance(text, LiteralText):
        return False
    return OPENING in text.replace(ESCAPED, " ")


def is_text(value: str) -> bool:
    """True if a string can be written to a file: half a surrogate pair cannot."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def refuse_text(text: str) -> None:
    """Refuse text that files cannot contain, or that contains a secret, as every value is recorded.

    Raises:
        Invalid: the text is refused; the error does not repeat a secret.
    """
    if not is_text(text):
        raise Invalid("is not valid Unicode, which no file could record")
    secret = credential_in(text)
    if secret is not None:
        raise Invalid(
            f"holds {secret} (not shown); configurations are recorded and must not contain secrets",
            hint="Put it in a Secret field of its own, such as 'env:NAME' or 'file:PATH', or in "
            "the service's own login file.",
            secret=True,
        )


def is_own(value: object) -> bool:
    """True if a value's class has its own reader and writer, like `Period` or `Free`."""
    cls = type(value)
    is_class = hasattr(cls, "__setpoint_scalar__") or cls.__module__.startswith(KERNEL)
    return is_class and callable(getattr(cls, "dump", None))


def plain_scalar(value: Any) -> Any:
    """A numpy or torch scalar as Python's own number or text if exact; else unchanged."""
    if type(value).__module__ not in ("numpy", "torch") or getattr(value, "shape", None) != ():
        return value
    scalar = value.item()
    return scalar if type(scalar) in (int, float, bool, str) else value


def member_text(member: Enum) -> str:
    """The name of an enum member; for flags, the names of all set members, or `0`."""
    return "|".join(flag_names(member)[0]) or "0" if isinstance(member, Flag) else member.name


def flag_names(flags: Flag) -> tuple[list[str], int]:
    """The members in a combination of flags, and the bits without a member."""
    if flags.name in type(flags).__members__:
        return [str(flags.name)], 0
    names: list[str] = []
    rest: int = flags.value
    for name, member in sorted(
        type(flags).__members__.items(), key=lambda item: item[1].value.bit_count()
    ):
        if member.value & rest and member.value & flags.value == member.value:
            names.append(name)
            rest &= ~member.value
    return names, rest


def plain(value: Any) -> Any:
    """Convert a value of any layer, or of a resolved configuration, to JSON types.

    Returns:
        None, a bool, int, float, str, list or dict; infinities as texts, an unquoted text as read
        by YAML's core schema, and a section as its type.
    """
    if value is None or value.__class__ in _PLAIN:
        return value
    if isinstance(value, PlainScalar):
        try:
            return plain(guess(value))
        except SetpointError:  # a number out of range, which its field refuses
            return str(value)
    if isinstance(value, LiteralText):
        return escaped(value)
    if is_own(value):  # also a size, which is a number
        return plain(value.dump())
    if isinstance(value, Enum):
        return member_text(value)
    if isinstance(value, float):
        return value if abs(value) < INFINITIES[0] else str(value)
    if isinstance(value, int | str):
        return value
    if isinstance(value, Mapping | list | tuple):
        return rebuild(value, plain)
    cls: Any = value.__class__
    if hasattr(cls, "__setpoint__"):
        return cls.__setpoint__.tag or cls.__name__
    return escaped(str(getattr(value, "pattern", value)))


def same(left: Any, right: Any) -> bool:
    """True if two values are equal in a configuration."""
    # In Python True == 1 == 1.0; in a configuration they are different values.
    for kind in (list, tuple, Mapping):
        if isinstance(cast(object, left), kind) and isinstance(cast(object, right), kind):
            pairs = ((item, item_at(right, key)) for key, item in children(left))
            return len(left) == len(right) and all(same(*pair) for pair in pairs)
    if isinstance(left, int | float) and isinstance(right, int | float):
        return type(left) is type(right) and left == right
    return bool(left == right)


def children(value: object) -> Iterable[tuple[Any, Any]]:
    """Items of a list or tuple with indices, or of a mapping with keys; empty for other values."""
    if isinstance(value, list | tuple):
        return enumerate(cast(Sequence[Any], value))
    return cast(Mapping[Any, Any], value).items() if isinstance(value, Mapping) else ()


def nested(value: object, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The leaf values of nested lists, tuples and mappings, with their paths.

    Any other value is yielded alone, with the given path.
    """
    if isinstance(value, Mapping | list | tuple):
        for key, item in children(cast(object, value)):
            yield from nested(item, (*path, key))
    else:
        yield path, value


def rebuild(value: Any, function: Callable[[Any], Any]) -> Any:
    """A list, tuple or mapping with the function applied to each item, as a plain list or dict.

    Any other value is returned unchanged.
    """
    if isinstance(value, (list, tuple)):
        return [function(item) for item in cast(Sequence[Any], value)]
    if isinstance(value, Mapping):
        return {key: function(item) for key, item in children(cast(object, value))}
    return value


def listed(value: Any) -> Any:
    """Copy nested lists, tuples and mappings as plain lists and dicts."""
    return rebuild(value, listed)


def item_at(value: Any, key: object) -> Any:
    """The item of a list, tuple or mapping; MISSING if there is none."""
    if isinstance(value, Mapping):
        return cast(Mapping[object, Any], value).get(key, MISSING)
    if isinstance(value, list | tuple) and isinstance(key, int):
        items = cast(Sequence[Any], value)
        return items[key] if 0 <= key < len(items) else MISSING
    return MISSING
