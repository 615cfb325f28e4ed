"""References: `${model.dim * 4}`, arithmetic on other fields; texts may hold several of them."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

from .errors import Invalid
from .literal import OPENING, LiteralText, literal, refers

if TYPE_CHECKING:
    import ast

Path = tuple[str | int, ...]
LENGTH = 2000
EXAMPLE = '"${model.dim * 4}"'
LITERALLY = "A text that holds ${ as it is writes it $${."


class Reference:
    """An expression over other fields, evaluated once all layers are merged.

    Arguments:
        text: the expression inside `${` and `}`, which must be the whole value.

    Raises:
        Invalid: if it is not arithmetic on fields.
    """

    __slots__ = ("_tree", "text")

    def __init__(self, text: str) -> None:
        self.text = str(text)
        body = self.text.strip()
        if not is_whole(body):
            raise Invalid(
                f"is not a reference: it must be the whole value, as in {EXAMPLE}; only texts and "
                f"paths hold references among other signs",
                hint=LITERALLY,
            )
        if len(body) > LENGTH:
            raise Invalid(f"is too long for a reference: {len(body)} of at most {LENGTH} signs")
        self._tree: ast.expr = _parse(body[2:-1])

    @property
    def path(self) -> Path | None:
        """The path of the one field that the reference names, or None for arithmetic."""
        from .arithmetic import path_of

        return path_of(self._tree)

    def evaluate(self, look_up: Callable[[Path], object]) -> object:
        """Compute the value.

        Arguments:
            look_up: gives the value of a field, by its path from the root.

        Returns:
            a number, or for a bare path whatever the field holds.

        Raises:
            Invalid: for an undefined operation, such as a division by zero.
        """
        from .arithmetic import evaluate

        return evaluate(self._tree, look_up)

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Reference) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)


class Template(Reference):
    """A text with references inside: `out/${name}-${seed}`; `$${` stands for `${` itself.

    Arguments:
        text: the text as layers have it.

    Raises:
        Invalid: if one of the references is not closed, or not arithmetic on fields.
    """

    __slots__ = ("_parts",)

    def __init__(self, text: str) -> None:
        self.text = str(text)
        if len(self.text) > LENGTH:
            raise Invalid(
                f"is too long for a text with references: {len(self.text)} of at most {LENGTH} "
                f"signs"
            )
        self._parts: list[str | ast.expr] = []
        at = 0
        while at < len(self.text):
            start = self.text.find(OPENING, at)
            if start < 0:
                self._parts.append(self.text[at:])
                break
            if start > at and self.text[start - 1] == "$":
                self._parts.append(self.text[at : start - 1] + OPENING)
                at = start + len(OPENING)
                continue
            end = _closing(self.text, start)
            if end < 0:
                shown = self.text[start : start + 40]
                raise Invalid(
                    f"holds a reference that is not closed by }}: {shown}", hint=LITERALLY
                )
            self._parts += [self.text[at:start], _parse(self.text[start + 2 : end], LITERALLY)]
            at = end + 1

    @property
    def path(self) -> Path | None:
        """None: a text leads to no section."""
        return None

    def evaluate(self, look_up: Callable[[Path], object]) -> object:
        """See `Reference.evaluate`; the text, with each value written as it is shown."""
        from .arithmetic import evaluate, unparse

        texts: list[str] = []
        for part in self._parts:
            if isinstance(part, str):
                texts.append(part)
                continue
            value = evaluate(part, look_up)
            text = _text_of(value)
            if text is None:
                raise Invalid(
                    f"cannot be put together: {unparse(part)} is {_kind_of(value)}; a text takes "
                    f"texts, numbers, truth values and paths"
                )
            texts.append(text)
        return literal("".join(texts))


def reference(text: str, in_text: bool) -> Reference:
    """What a text with `${` in it means.

    Arguments:
        text: a text for which `refers` is true.
        in_text: whether it stands where a text or path is wanted, which may hold references.

    Returns:
        a reference, or a text with references.

    Raises:
        Invalid: if it is neither.
    """
    return Template(text) if in_text and not is_whole(text) else Reference(text)


def _parse(expression: str, hint: str = "") -> ast.expr:
    # Most configurations hold no reference, and need no parser.
    from .arithmetic import parse

    try:
        return parse(expression.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        resolver, colon, rest = expression.strip().partition(":")
        if colon and resolver in ("env", "oc.env"):
            hint = from_environment(rest.partition(",")[0].strip())
        raise Invalid(
            f"cannot be read as arithmetic on fields, as in {EXAMPLE}", hint=hint
        ) from None


def from_environment(name: str, prefix: str = "SETPOINT") -> str:
    """How a variable of the environment gets into a value, for who refers to it like a field.

    Arguments:
        name: of the variable.
        prefix: of the variables that set fields.

    Returns:
        two sentences.
    """
    return (
        f'References name fields, not variables of the environment. In a shell write "${name}", '
        f"which it replaces; or set the field from outside, as {prefix}__SECTION__FIELD=VALUE."
    )


def _closing(text: str, start: int) -> int:
    """Where the reference that begins at `start` is closed; -1 if it is not."""
    quote = ""
    for at in range(start + len(OPENING), len(text)):
        sign = text[at]
        if quote:
            quote = "" if sign == quote and text[at - 1] != "\\" else quote
        elif sign in "\"'":
            quote = sign
        elif sign == "}":
            return at
    return -1


def _text_of(value: object) -> str | None:
    """A value inside a text, as `show` writes it; None for what no text can hold."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, str | int | float):
        return str(value)
    as_posix: Any = getattr(value, "as_posix", None)  # `pathlib` is not free to import
    return None if as_posix is None else as_posix()


def _kind_of(value: object) -> str:
    if value is None or hasattr(type(value), "__setpoint__"):
        return "null" if value is None else "a section"
    return f"of type {type(value).__name__}"


def ref(expression: str) -> Any:
    """A reference for a field that is set in Python: computed once all layers are merged.

    Arguments:
        expression: arithmetic on fields by their paths from the root, such as `model.dim * 4`; or
            a text with references in it, such as `out/${name}`.

    Returns:
        the reference; typed so that type checkers take it for every field's value.

    Raises:
        Invalid: if it is not arithmetic on fields.
    """
    try:
        if refers(expression):
            return reference(expression, in_text=True)
        return Reference(f"${{{expression}}}")
    except Invalid as error:
        raise error.called("ref", expression) from None


def is_whole(text: str) -> bool:
    """Whether a text is one reference and nothing else.

    Arguments:
        text: a text.

    Returns:
        True for `${...}`, also where it cannot be read as arithmetic.
    """
    if isinstance(text, LiteralText):
        return False
    body = text.strip()
    if not (body.startswith(OPENING) and body.endswith("}")):
        return False
    return body.count(OPENING) == 1 and _closing(body, 0) in (-1, len(body) - 1)


def reference_to(path: Path) -> str:
    """The reference that names one place of a tree.

    Arguments:
        path: names, keys and indices from the root.

    Returns:
        for instance `${data.sources.0}`, or `${sets['a-b'][0]}` where a key is no plain name.
    """
    plain = all(isinstance(part, int) or _is_name(part) for part in path)
    text = str(path[0])
    for part in path[1:]:
        if plain or (isinstance(part, str) and _is_name(part)):
            text += f".{part}"
        else:
            text += f"[{part if isinstance(part, int) else _quoted(part)}]"
    return f"${{{text}}}"


def may_refer(value: object) -> bool:
    """Whether a value holds a reference, as text or read already, also in the items inside it.

    Arguments:
        value: a value of a layer, or a stored one.

    Returns:
        True if there is one.
    """
    if isinstance(value, str):
        return refers(value)
    if isinstance(value, list | tuple):
        return any(map(may_refer, cast(Sequence[object], value)))
    if isinstance(value, dict):
        return any(map(may_refer, cast(dict[str, object], value).values()))
    return isinstance(value, Reference)


def _is_name(part: str) -> bool:
    return part.isascii() and part.isidentifier() and not keyword.iskeyword(part)


def _quoted(key: str) -> str:
    """A key as the expression has it, without any sign that could end the reference."""
    signs = (c if c.isascii() and (c.isalnum() or c in " _-") else _escape(c) for c in key)
    return f"'{''.join(signs)}'"


def _escape(sign: str) -> str:
    code = ord(sign)
    return f"\\x{code:02x}" if code < 0x100 else f"\\U{code:08x}"
