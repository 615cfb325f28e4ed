"""Numbers, truth values, texts and closed vocabularies."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from ..values.origin import REFERENCE
from ..words.errors import Invalid
from ..words.names import did_you_mean
from ..words.plain_data import (
    INFINITIES,
    MAX_BITS,
    TOO_BIG,
    LiteralText,
    PlainScalar,
    escaped,
    flag_names,
    is_text,
    literal,
    member_text,
    refuse_credentials,
)
from ..words.text import (
    for_error,
    for_flag,
)
from .base import FieldType

if TYPE_CHECKING:
    from ..values.origin import Origin

TRUTH = {
    **dict.fromkeys(("yes", "on", "1", "y", "t"), "true"),
    **dict.fromkeys(("no", "off", "0", "n", "f"), "false"),
}
"""How other languages write bool: suggested in errors, never accepted."""
TOO_LONG = "has more digits than can be written to a file"
NOT_TEXT = "is not valid Unicode, which no file could record"


class IntType(FieldType):
    """Whole numbers; a float is refused, also an integral one, since it may be a slip."""

    __slots__ = ()
    words = "an int"

    def read(self, value: object, origin: Origin) -> int:
        if isinstance(value, PlainScalar):
            return self._parse(value, origin)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._refuse(value, origin)
        if value.bit_length() > MAX_BITS:
            raise Invalid(TOO_LONG)
        return int(value)

    def _parse(self, text: str, origin: Origin) -> int:
        try:
            # TOML has the prefixes, and a number means the same wherever it stands.
            number = int(_checked(text), 0 if _has_prefix(text) else 10)
        except ValueError:
            return self._integral(text, origin)
        if number.bit_length() > MAX_BITS:
            raise Invalid(TOO_LONG)
        return number

    def _refuse(self, value: object, origin: Origin) -> Invalid:
        error = self.refuse(value)
        number = _float(value) if isinstance(value, str) else value
        if isinstance(number, float) and number.is_integer() and abs(number) < 2**53:
            whole = f"Write {number:.0f}."
            computed = origin.layer == REFERENCE
            error.hint = "Use // for the integer quotient." if computed else whole
        return error

    def _integral(self, text: str, origin: Origin) -> int:
        number = _float(text)
        # 1e6 is how people write a million tokens; it is exact as long as it is integral.
        if "e" in text.lower() and number.is_integer() and abs(number) < 2**53:
            return int(number)
        raise self._refuse(text, origin)


class FloatType(FieldType):
    """Numbers; whole ones are taken as floats, "not a number" is refused."""

    __slots__ = ()
    words = "a float"

    def read(self, value: object, origin: Origin) -> float:
        if isinstance(value, str):
            # A file format without infinities writes them as texts.
            if not isinstance(value, PlainScalar) and value not in ("inf", "-inf"):
                raise self.refuse(value)
            try:
                # YAML writes infinities as .inf and -.inf.
                plain = _checked(value).lower().replace(".inf", "inf")
                number = float(int(plain, 0) if _has_prefix(plain) else plain)
            except OverflowError:
                raise Invalid(TOO_BIG) from None
            except ValueError:
                raise self.refuse(value) from None
            if number in INFINITIES and "inf" not in value.lower():
                raise Invalid(TOO_BIG)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:
                raise Invalid(TOO_BIG) from None
        else:
            raise self.refuse(value)
        if number != number:
            raise Invalid("is nan, which a configuration cannot hold")
        # Minus zero equals zero, and equal configs must have equal fingerprints.
        return number + 0.0


class BoolType(FieldType):
    """True or false, and nothing that merely looks like it."""

    __slots__ = ()
    words = "a bool"

    def candidates(self) -> tuple[str, ...]:
        return ("true", "false")

    def read(self, value: object, origin: Origin) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, PlainScalar) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        error = self.refuse(value)
        if isinstance(value, str):
            word = value.lower()
            error.hint = did_you_mean(TRUTH.get(word, word), self.candidates())
        raise error


class StrType(FieldType):
    """Texts; a number is not taken for one."""

    __slots__ = ()
    words = "a str"
    takes_text = True

    def read(self, value: object, origin: Origin) -> str:
        if isinstance(value, str) and not isinstance(value, enum.Enum):
            if not is_text(value):
                raise Invalid(NOT_TEXT)
            if "\0" in value:  # a text may name a file, a host or a metric
                raise Invalid("holds a zero byte, which no path, name or variable can")
            refuse_credentials(value)
            return literal(value)
        raise self.refuse(value)

    def dump(self, value: str) -> str:
        return escaped(value)


class PathType(FieldType):
    """Paths of files and folders, kept as they were given."""

    __slots__ = ()
    words = "a path"
    takes_text = True

    def read(self, value: object, origin: Origin) -> Any:
        from pathlib import Path, PurePath

        if isinstance(value, PurePath):
            value = value.as_posix()
            refuse_credentials(value.replace(":/", "://", 1))  # as it was before it was a path
        if not isinstance(value, str):
            raise self.refuse(value)
        if not value or "\0" in value:
            raise Invalid("is not a path: it is empty or holds a zero byte")
        if not is_text(value):
            raise Invalid(NOT_TEXT)
        refuse_credentials(value)
        return Path(str(value))

    def dump(self, value: Any) -> str:
        text = escaped(value.as_posix())
        # Bare, it would be read back as no path at all.
        return f"./{text}" if text == "null" else text


class LiteralType(FieldType):
    """A closed vocabulary of texts, numbers and truth values."""

    __slots__ = ("choices",)

    def __init__(self, choices: tuple[Any, ...]) -> None:
        self.choices = choices

    def candidates(self) -> tuple[str, ...]:
        return tuple(for_flag(choice) for choice in self.choices)

    def read(self, value: object, origin: Origin) -> Any:
        value = str(value) if isinstance(value, LiteralText) else value
        for choice in self.choices:
            if isinstance(value, PlainScalar):
                if for_flag(choice) == value:
                    return choice
            elif type(choice) is type(value) and choice == value:
                return choice
        raise refuse_choice(value, self.candidates())

    def dump(self, value: Any) -> Any:
        return escaped(value) if isinstance(value, str) else value


class EnumType(FieldType):
    """The members of an enum, by name or alias; those of flags also combined, as `READ|WRITE`."""

    __slots__ = ("cls",)

    def __init__(self, cls: type[enum.Enum]) -> None:
        self.cls = cls

    def candidates(self) -> tuple[str, ...]:
        return tuple(self.cls.__members__)

    def read(self, value: object, origin: Origin) -> Any:
        members = self.cls.__members__
        if isinstance(value, self.cls):
            self._refuse_unnamed(value)
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
        raise refuse_choice(value, self.candidates())

    def _refuse_unnamed(self, value: Any) -> None:
        """Refuse flags with bits that no member names, which no file could say."""
        rest = flag_names(value)[1] if isinstance(value, enum.Flag) else 0
        if rest:
            raise Invalid(f"has the bits {rest:#b}, which no member names", self.candidates())

    def dump(self, value: Any) -> str:
        return member_text(value)


def refuse_choice(value: object, choices: tuple[str, ...]) -> Invalid:
    """The error for a value outside a closed vocabulary, with the nearest word."""
    # `fp16` is no slip for `bf16`: of names so short, with digits, each letter counts.
    is_name = len(str(value)) <= 4 and any(each.isdigit() for each in str(value))
    near = [each for each in choices if not is_name or sorted(each) == sorted(str(value).lower())]
    hint = did_you_mean(str(value), near) if isinstance(value, str) else ""
    return Invalid(f"is not one of the valid values: got {for_error(value)}", choices, hint=hint)


def _has_prefix(text: str) -> bool:
    """Whether a text is written as a hexadecimal, octal or binary number is."""
    return text.lstrip("+-")[:2].lower() in ("0x", "0o", "0b")


def _checked(text: str) -> str:
    """Refuse what Python takes for a number and people do not: other scripts' digits, `1_0.5`."""
    grouped = "_" not in text or _has_prefix(text) or _is_grouped(text)
    if not text.isascii() or not grouped:
        raise ValueError(text)
    return text


def _is_grouped(text: str) -> bool:
    """Whether underscores stand where thousands are counted, and nowhere else."""
    whole = text.lower().partition("e")[0].partition(".")[0].lstrip("+-")
    first, *groups = whole.split("_")
    counted = text.count("_") == len(groups) and all(len(group) == 3 for group in groups)
    return counted and 1 <= len(first) <= 3


def _float(text: str) -> float:
    try:
        return float(_checked(text))
    except ValueError:
        return float("nan")
