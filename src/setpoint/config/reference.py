"""References: `${model.dim * 4}`, arithmetic on other fields and nothing else."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from .errors import Invalid
from .literal import LiteralText, refers

if TYPE_CHECKING:
    import ast

Path = tuple[str | int, ...]
LENGTH = 2000
EXAMPLE = '"${model.dim * 4}"'


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
                f"is not a reference: it must be the whole value, as in {EXAMPLE}",
                hint="A text that holds ${ as it is writes it $${.",
            )
        if len(body) > LENGTH:
            raise Invalid(f"is too long for a reference: {len(body)} of at most {LENGTH} signs")
        # Most configurations hold no reference, and need no parser.
        from .arithmetic import parse

        try:
            self._tree: ast.expr = parse(body[2:-1].strip())
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise Invalid(f"cannot be read as arithmetic on fields, as in {EXAMPLE}") from None

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


def ref(expression: str) -> Any:
    """A reference for a field that is set in Python: computed once all layers are merged.

    Arguments:
        expression: arithmetic on fields by their paths from the root, such as `model.dim * 4`.

    Returns:
        the reference; typed so that type checkers take it for every field's value.

    Raises:
        Invalid: if it is not arithmetic on fields.
    """
    try:
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
    return body.startswith("${") and body.endswith("}") and body.count("${") == 1


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
