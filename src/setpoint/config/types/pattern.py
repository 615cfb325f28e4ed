"""Regular expressions: compiled, and so checked, at the moment they are given."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any, cast

from ..errors import Invalid
from ..files.limits import is_text
from ..literal import escaped
from .base import FieldType
from .scalars import NOT_TEXT

if TYPE_CHECKING:
    from ..origin import Origin

LENGTH = 1000  # a longer expression is a mistake, and compiling it may take long
# Python's flags as they are written inside an expression; all texts are Unicode anyway.
FLAGS = (
    (re.ASCII, "a"),
    (re.IGNORECASE, "i"),
    (re.MULTILINE, "m"),
    (re.DOTALL, "s"),
    (re.VERBOSE, "x"),
)


class PatternType(FieldType):
    """A regular expression of Python's `re`; flags are part of its text, as in `(?i)warmup`."""

    __slots__ = ()

    def describe(self) -> str:
        """See `FieldType.describe`."""
        return "a regular expression"

    def read(self, value: object, origin: Origin) -> re.Pattern[str]:
        """See `FieldType.read`."""
        if isinstance(value, re.Pattern):
            return _from_python(cast(re.Pattern[Any], value))
        if not isinstance(value, str):
            raise self.refuse(value)
        return _compiled(str(value))

    def dump(self, value: re.Pattern[str]) -> str:
        """See `FieldType.dump`."""
        return escaped(value.pattern)


def _compiled(text: str) -> re.Pattern[str]:
    if len(text) > LENGTH:
        raise Invalid(f"is too long for an expression: {len(text)} of at most {LENGTH} signs")
    if not is_text(text):
        raise Invalid(NOT_TEXT)
    if text == "null":  # read back from a file, it would mean something else
        raise Invalid("would be read as no expression", hint="Write (?:null).")
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
        raise Invalid(f"is not a clear regular expression: {warning}") from None


def _from_python(pattern: re.Pattern[Any]) -> re.Pattern[str]:
    """The same expression with its flags inside its text, where a record keeps them."""
    text = pattern.pattern
    if not isinstance(text, str):
        raise Invalid("is an expression over bytes; configurations hold expressions over texts")
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
