"""Texts that hold `${` and are no references: written `$${` in every layer and every file."""

from __future__ import annotations

OPENING = "${"
ESCAPED = "$${"


class LiteralText(str):
    """A text of a field that holds `${` as it is.

    It equals the same text of any other kind, and can be given to another field.
    """

    __slots__ = ()


def literal(text: str) -> str:
    """A text as a field stores it, of which it is known that it is no reference.

    Arguments:
        text: the text itself, without escapes.

    Returns:
        the same text; a `LiteralText` where it would otherwise be read as a reference.
    """
    return LiteralText(text) if OPENING in text else str(text)


def escaped(text: str) -> str:
    """A text as files, flags and Python have it.

    Arguments:
        text: the text itself.

    Returns:
        the text with `$${` for each `${`.
    """
    return text.replace(OPENING, ESCAPED)


def unescaped(text: str) -> LiteralText:
    """A text as it is meant.

    Arguments:
        text: as files, flags and Python have it.

    Returns:
        the text with `${` for each `$${`; what `escaped` gave is as it was before.
    """
    return LiteralText(text.replace(ESCAPED, OPENING))


def refers(text: str) -> bool:
    """Whether a text is, or tries to be, a reference.

    Arguments:
        text: a text of a layer, or a stored one.

    Returns:
        True if it holds a `${` that no further `$` stands before.
    """
    if OPENING not in text or isinstance(text, LiteralText):
        return False
    return OPENING in text.replace(ESCAPED, " ")
