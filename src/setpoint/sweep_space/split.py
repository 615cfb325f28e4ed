"""Where commas separate points: not inside brackets, braces, parentheses or quotes."""

from __future__ import annotations

from setpoint.config import PlainScalar, SetpointError, parse_flow

CLOSING = {"[": "]", "{": "}", "(": ")"}
QUOTES = "\"'"


def split_points(text: str) -> list[str]:
    """Split a text at the commas that stand outside everything.

    Returns:
        the parts, without space around them; the text as it is where nothing separates, or where
        brackets or quotes do not match, which its reader will say better.
    """
    parts: list[str] = []
    begin, at = 0, 0
    open_: list[str] = []
    before = ","  # the sign before this one, without spaces
    while at < len(text):
        sign = text[at]
        # A quote inside a word, as in `don't`, opens nothing.
        if sign in QUOTES and before in "[{(,=:":
            at = _closing_quote(text, at)
        elif sign in CLOSING:
            open_.append(CLOSING[sign])
        elif open_ and sign == open_[-1]:
            open_.pop()
        elif sign == "," and not open_:
            parts.append(text[begin:at].strip())
            begin = at + 1
        before = before if sign.isspace() else sign
        at += 1
    if open_ or not parts:
        return [text]
    return [*parts, text[begin:].strip()]


def point_value(part: str) -> str:
    """The value that a part stands for.

    Raises:
        SetpointError: if there is nothing.
    """
    if not part:
        raise SetpointError("a point is empty: there is a comma too many")
    if len(part) > 1 and part[0] in QUOTES and part[-1] == part[0]:
        return str(parse_flow(part))
    return PlainScalar(part)


def _closing_quote(text: str, at: int) -> int:
    """Where the quote ends that begins at a place; the place itself if it never ends."""
    end = at + 1
    while end < len(text):
        if text[end] == "\\" and text[at] == '"':
            end += 1
        elif text[end] == text[at]:
            return end
        end += 1
    return at
