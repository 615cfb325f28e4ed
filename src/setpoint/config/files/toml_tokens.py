"""The tokens of TOML, as far as structure needs them: strings and comments hide what they hold."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .error import error_at
from .limits import MAX_DEPTH, MAX_DIGITS, MAX_NODES, TOO_DEEP, TOO_LONG, TOO_MANY

if TYPE_CHECKING:
    from collections.abc import Iterator

# Possessive repeats (`*+`) keep this linear. A string that is not closed runs as far as it may.
_TOKEN = re.compile(
    r"""
    (?P<comment>  \#[^\n]*+ )
  | (?P<string>   \"{3} (?: [^"\\]++ | \\[\s\S] | "(?!"") )*+ (?:"{3,5})?
                | '{3}  (?: [^']++ | '(?!'') )*+ (?:'{3,5})?
                | " (?: [^"\\\n]++ | \\[^\n] )*+ "?
                | ' [^'\n]*+ '? )
  | (?P<mark>     [\[\]{}.,=\n] )
  | (?P<bare>     [^\s\#"'\[\]{}.,=]++ )
    """,
    re.VERBOSE,
)


class Token:
    """One token.

    Arguments:
        kind: `"string"`, `"mark"` (brackets, `.`, `,`, `=` and the end of a line) or `"bare"`.
        text: the token as it stands in the file.
        offset: its first character, counted from 0.
    """

    __slots__ = ("kind", "offset", "text")

    def __init__(self, kind: str, text: str, offset: int) -> None:
        self.kind = kind
        self.text = text
        self.offset = offset


def tokens(text: str) -> Iterator[Token]:
    """Split a TOML text; wrong as TOML may be, this never fails.

    Arguments:
        text: the whole text.

    Returns:
        all tokens but comments, in order.
    """
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind is not None and kind != "comment":
            yield Token(kind, match[0], match.start())


def refuse_extremes(text: str, name: str) -> None:
    """Refuse what would exhaust the standard library's reader: depth, size, long numbers.

    Arguments:
        text: the whole text.
        name: the file as it is shown to people.

    Raises:
        FileError: one of the limits is broken.
    """
    depth = dots = nodes = 0
    before = ""
    for token in tokens(text):
        # A number with a fraction is three tokens, and one value.
        if token.kind in ("bare", "string") or token.text in ("[", "{"):
            nodes += not (before == "." and token.text[0].isdigit())
        before = token.text
        if nodes > MAX_NODES["toml"]:
            raise error_at(name, text, token.offset, TOO_MANY.format(MAX_NODES["toml"]))
        if token.kind == "bare":
            digits = len(token.text.lstrip("+-").replace("_", ""))
            if digits > MAX_DIGITS and token.text.lstrip("+-")[0].isdigit():
                raise error_at(name, text, token.offset, TOO_LONG.format(digits))
        elif token.text in ("[", "{"):
            depth, dots = depth + 1, 0
        elif token.text in ("]", "}"):
            depth, dots = depth - 1, 0
        elif token.text == ".":
            dots += 1
        elif token.kind == "mark":
            dots = 0
        if depth > MAX_DEPTH or dots >= MAX_DEPTH:
            raise error_at(name, text, token.offset, TOO_DEEP)
