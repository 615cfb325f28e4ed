"""Texts before a field has read them, their inline syntax, and limits of files and names."""

from __future__ import annotations

from typing import Literal

from .credentials import credential_in
from .errors import Invalid, SetpointError

_BOOLEANS = {
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_NOT_FINITE = {".inf", ".Inf", ".INF"}
_NAN = {".nan", ".NaN", ".NAN"}
_DIGITS = "0123456789"
OPENING = "${"
ESCAPED = "$${"
Format = Literal["toml", "yaml", "json"]
MIB = 1024 * 1024
# With these, the largest file of each format is read within 10 seconds of processor time and 512
# MiB. JSON has a faster reader, and is what records are written in.
MAX_BYTES: dict[Format, int] = {"toml": 2 * MIB, "yaml": 2 * MIB, "json": 16 * MIB}
MAX_NODES: dict[Format, int] = {"toml": 100_000, "yaml": 100_000, "json": 500_000}
MAX_DEPTH = 64  # mappings and lists inside one another, the file itself being the first
MAX_DIGITS = 4300  # the bound of Python itself, which a user may have lifted
MAX_FILES = 256  # of one configuration, with all that they extend
MAX_NESTING = 16  # files that extend one another
MAX_COPIED = 100_000  # values that references to lists and mappings repeat
# The messages are shared by the readers, so that the same mistake reads the same everywhere.
TOO_MANY = "more than {} keys and values"
TOO_BIG = "is too large for a floating-point number"
TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
TOO_LONG = f"a number of {{}} digits is refused; at most {MAX_DIGITS} are read"
HALF_PAIR = "the text holds half a surrogate pair, which is no character"
# Bytes of a path and of each of its parts; Linux takes 4096, and something is put below it.
MAX_PATH = 4000
MAX_NAME = 255
# One way of quoting that JSON, TOML and YAML all read. Escaped are what one of them forbids
# (control characters, non-characters), what breaks lines, and what would make a line look like
# another (the byte order mark and the marks that turn the direction of writing).
_ESCAPES = {
    code: f"\\u{code:04x}"
    for first, last in (
        (0x00, 0x1F),
        (0x7F, 0x9F),
        (0x200E, 0x200F),
        (0x2028, 0x202E),
        (0x2066, 0x2069),
        (0xFEFF, 0xFEFF),
        (0xFFFE, 0xFFFF),
    )
    for code in range(first, last + 1)
} | {ord(c): "\\" + e for c, e in zip('\b\t\n\f\r"\\', 'btnfr"\\', strict=True)}


class PlainScalar(str):
    """A text that was written without quotes and is to be read by the type of its field.

    Arguments:
        text: the text as it stands in the file, the flag or the environment variable.
    """

    __slots__ = ()


def guess(text: PlainScalar) -> bool | int | float | str:
    """What a plain scalar means where no field gives it a type.

    Returns:
        a truth value, a whole number, a float, or the same text as a plain `str`.

    Raises:
        SetpointError: the text is a whole number of more than 4,300 digits, or a number beyond
            the largest float, which must not become infinite unseen.

    Source: the core schema of YAML 1.2.2, section 10.3.2; its nulls are taken by the reader.
    """
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    unsigned = text[1:] if text[:1] in ("+", "-") else text
    if unsigned in _NOT_FINITE:
        return float("-inf") if text[0] == "-" else float("inf")
    if text in _NAN:
        return float("nan")
    if text[:2] == "0x" and text[2:] and not text[2:].strip(_DIGITS + "abcdefABCDEF"):
        return _integer(text[2:], 16)
    if text[:2] == "0o" and text[2:] and not text[2:].strip("01234567"):
        return _integer(text[2:], 8)
    if unsigned and not unsigned.strip(_DIGITS):
        return _integer(text, 10)
    if not _is_float(unsigned):
        return str(text)
    number = float(text)
    if abs(number) == float("inf"):
        raise SetpointError(TOO_BIG)
    return number


def _integer(text: str, base: int) -> int:
    digits = len(text.lstrip("+-"))
    if digits > MAX_DIGITS:
        raise SetpointError(TOO_LONG.format(digits))
    return int(text, base)


def _is_float(unsigned: str) -> bool:
    """Whether the text is `digits[.digits][e[sign]digits]` or `.digits...`; ASCII digits only."""
    mantissa, mark, exponent = unsigned.replace("E", "e").partition("e")
    if mark:
        exponent = exponent[1:] if exponent[:1] in ("+", "-") else exponent
        if not exponent or exponent.strip(_DIGITS):
            return False
    whole, _, fraction = mantissa.partition(".")
    return bool(whole or fraction) and not (whole + fraction).strip(_DIGITS)


class LiteralText(str):
    """A text of a field that holds `${` as it is.

    It equals the same text of any other kind, and can be given to another field.
    """

    __slots__ = ()


def literal(text: str) -> str:
    """A text as a field stores it, of which it is known that it is no reference.

    Returns:
        the same text; a `LiteralText` where it would otherwise be read as a reference.
    """
    return LiteralText(text) if OPENING in text else str(text)


def escaped(text: str) -> str:
    """A text as files, flags and Python have it."""
    return text.replace(OPENING, ESCAPED)


def unescaped(text: str) -> LiteralText:
    """A text as it is meant.

    Returns:
        the text with `${` for each `$${`; what `escaped` gave is as it was before.
    """
    return LiteralText(text.replace(ESCAPED, OPENING))


def refers(text: str) -> bool:
    """Whether a text is, or tries to be, a reference.

    Returns:
        True if it holds a `${` that no further `$` stands before.
    """
    if OPENING not in text or isinstance(text, LiteralText):
        return False
    return OPENING in text.replace(ESCAPED, " ")


def quoted(text: str) -> str:
    """A text in double quotes.

    Arguments:
        text: any text that `plain_data` let pass.

    Returns:
        one line that JSON, TOML and YAML 1.2 read as that text.
    """
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'  # nearly every text, and ten times as fast
    return f'"{text.translate(_ESCAPES)}"'


def refuse_credentials(text: str) -> None:
    """Refuse a text that holds a secret, since every value of a configuration is recorded.

    Raises:
        Invalid: if a secret is in it; the error does not repeat it.
    """
    found = credential_in(text)
    if found is not None:
        raise Invalid(
            f"holds {found} (not shown); configurations are recorded and must not contain secrets",
            hint="Keep it in a Secret field of its own, as 'env:NAME' or 'file:PATH', or in the "
            "service's own login file.",
            secret=True,
        )


def too_large(size: int, format: Format) -> str:
    """Why a file of so many bytes is not read."""
    limit = f"at most {MAX_BYTES[format] // MIB} MiB of {format.upper()} are read"
    return f"the file holds {size} bytes; {limit}"


def may_nest_deeply(text: str, plain: str) -> bool:
    """Whether brackets may stand inside one another deeper than `MAX_DEPTH`; quick, by lines.

    Arguments:
        plain: a regular expression for the texts in quotes, and comments, of one line; none may
            go on in the next.

    Returns:
        False means that they do not; True, that they may.
    """
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    import re

    depth = 0
    for line in text.split("\n"):
        opening, closing = line.count("[") + line.count("{"), line.count("]") + line.count("}")
        if not (opening or closing):
            continue
        if '"' in line or "'" in line or "#" in line:
            line = re.sub(plain, "", line)
            opening, closing = line.count("[") + line.count("{"), line.count("]") + line.count("}")
        depth += opening
        if depth > MAX_DEPTH:
            return True
        depth = max(0, depth - closing)
    return False


def has_long_number(text: str) -> bool:
    """Whether a run of digits is so long that converting it is refused; it may stand inside quotes.

    Returns:
        False means that no number of the file is too long; True, that one may be.
    """
    if len(text) <= MAX_DIGITS or max(map(len, text.split("\n"))) <= MAX_DIGITS:
        return False
    import re

    # The look-behind starts a match at the head of a run only: linear in the length of the text.
    pattern = rf"(?<![0-9A-Fa-f_])[0-9A-Fa-f_]{{{MAX_DIGITS + 1}}}"
    return re.search(pattern, text) is not None


def is_text(value: str) -> bool:
    """Whether a string can be written to a file: half a surrogate pair cannot."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def can_be_named(text: str) -> bool:
    """Whether the system can take a text: as the name of a file, a module, a user or a command.

    Arguments:
        text: as a layer gives it; bytes that are no UTF-8 stand in it as Python keeps them.

    Returns:
        False if it holds a zero byte, or what the file system's encoding cannot express.
    """
    if "\0" in text:
        return False
    if text.isascii():
        return True
    from os import fsencode

    try:
        fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def can_be_path(text: str) -> bool:
    """Whether a text can be the path of a file or folder on the systems that there are."""
    if not can_be_named(text):
        return False
    from os import fsencode

    data = fsencode(text)
    return len(data) < MAX_PATH and all(len(part) <= MAX_NAME for part in data.split(b"/"))


DATA = ("[", "{", '"', "'")  # how a list, a mapping or a quoted text begins
DEPTH = 32
ENDS = ",]}\n"


def parse_flow(text: str) -> object:
    """Read a list, a mapping or a scalar.

    Arguments:
        text: for instance `{rank: 8, targets: [q, v]}`.

    Returns:
        lists, dicts and scalars; unquoted scalars as `PlainScalar`.

    Raises:
        Invalid: if the text is not well formed, with the position.
    """
    reader = _Reader(str(text))
    value = reader.value(0)
    reader.end()
    return value


def parse_list(text: str) -> list[object]:
    """Read the items of a list, with or without brackets.

    Arguments:
        text: `[1, 2]` or `1,2`; the empty text is the empty list.

    Raises:
        Invalid: if the text is not well formed.
    """
    stripped = str(text).strip()
    if not stripped:
        return []
    if not stripped.startswith("["):
        stripped = f"[{stripped}]"
    reader = _Reader(stripped)
    items = reader.items(0)
    reader.end()
    return items


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def fail(self, message: str) -> Invalid:
        # The text itself is shown by the report, unless it may hold a secret.
        return Invalid(f"cannot be read at position {self.at + 1}: {message}")

    def peek(self) -> str:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.text[self.at] if self.at < len(self.text) else ""

    def end(self) -> None:
        if self.peek():
            raise self.fail("unexpected text after the value")

    def value(self, depth: int) -> object:
        if depth > DEPTH:
            raise self.fail(f"nested deeper than {DEPTH} levels")
        start = self.peek()
        if start == "[":
            return self.items(depth)
        if start == "{":
            return self.mapping(depth)
        return self.scalar(ENDS)

    def items(self, depth: int) -> list[object]:
        self.at += 1
        found: list[object] = []
        while self.peek() != "]":
            if not self.peek():
                raise self.fail("the list is not closed by ]")
            found.append(self.value(depth + 1))
            if self.peek() == ",":
                self.at += 1
            elif self.peek() not in ("]", ""):
                raise self.fail("expected , or ]")
        self.at += 1
        return found

    def mapping(self, depth: int) -> dict[str, object]:
        self.at += 1
        found: dict[str, object] = {}
        while self.peek() != "}":
            if not self.peek():
                raise self.fail("the mapping is not closed by }")
            key = str(self.scalar(ENDS + ":="))
            if self.peek() not in (":", "="):
                raise self.fail("expected = or : after the key")
            self.at += 1
            if key in found:
                raise self.fail("a key is given twice")
            found[key] = self.value(depth + 1)
            if self.peek() == ",":
                self.at += 1
            elif self.peek() not in ("}", ""):
                raise self.fail("expected , or }")
        self.at += 1
        return found

    def scalar(self, ends: str) -> object:
        start = self.peek()
        if start and start in "\"'":
            return self.quoted(start)
        begin = self.at
        while self.at < len(self.text) and self.text[self.at] not in ends:
            # A reference may hold any of the closing characters.
            if self.text.startswith("${", self.at):
                close = self.text.find("}", self.at)
                if close < 0:
                    raise self.fail("the reference is not closed by }")
                self.at = close
            self.at += 1
        word = self.text[begin : self.at].strip()
        if not word:
            raise self.fail("expected a value")
        return PlainScalar(word)

    def quoted(self, quote: str) -> str:
        escapes = dict(zip('ntrbf/\\"', '\n\t\r\b\f/\\"', strict=True))
        self.at += 1
        parts: list[str] = []
        while self.at < len(self.text):
            sign = self.text[self.at]
            self.at += 1
            if sign == quote:
                return "".join(parts)
            if sign == "\\" and quote == '"':
                follow = self.text[self.at : self.at + 1]
                if follow == "u":
                    parts.append(self.unicode())
                    continue
                if follow not in escapes:
                    raise self.fail(f"unknown escape \\{follow}")
                sign = escapes[follow]
                self.at += 1
            parts.append(sign)
        raise self.fail(f"the text is not closed by {quote}")

    def unicode(self) -> str:
        code = self.hexadecimal()
        # JSON writes characters beyond the first 65536 as two escapes.
        if 0xD800 <= code < 0xDC00 and self.text.startswith("\\u", self.at):
            low = self.hexadecimal(1)
            if 0xDC00 <= low < 0xE000:
                return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00))
        if 0xD800 <= code < 0xE000:
            raise self.fail("half a surrogate pair is no character")
        return chr(code)

    def hexadecimal(self, skip: int = 0) -> int:
        self.at += skip
        digits = self.text[self.at + 1 : self.at + 5]
        if len(digits) < 4 or digits.strip("0123456789abcdefABCDEF"):
            raise self.fail(f"\\u needs four hexadecimal digits, got {digits!r}")
        self.at += 5
        return int(digits, 16)
