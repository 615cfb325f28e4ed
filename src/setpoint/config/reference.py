"""References: `${model.dim * 4}`, arithmetic on other fields and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .errors import Invalid

if TYPE_CHECKING:
    import ast

Path = tuple[str | int, ...]
LENGTH = 500
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
        if not (body.startswith("${") and body.endswith("}")) or body.count("${") != 1:
            raise Invalid(f"is not a reference: it must be the whole value, as in {EXAMPLE}")
        if len(body) > LENGTH:
            raise Invalid(f"is too long for a reference: {len(body)} of at most {LENGTH} signs")
        # Most configurations hold no reference, and need no parser.
        from .arithmetic import parse

        try:
            self._tree: ast.expr = parse(body[2:-1].strip())
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise Invalid(f"cannot be read as arithmetic on fields, as in {EXAMPLE}") from None

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
