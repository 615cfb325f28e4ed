"""References: `${model.dim * 4}`, arithmetic on other fields; text may contain several."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Any

from ..words.errors import Invalid
from ..words.names import Path
from ..words.plain_data import (
    ESCAPED,
    INFINITIES,
    OPENING,
    TOO_BIG,
    LiteralText,
    children,
    literal,
    refers,
)
from ..words.text import for_flag

if TYPE_CHECKING:
    import ast

BITS = 4096
EXAMPLE = '"${model.dim * 4}"'
LITERALLY = "To write ${ as it is, escape it as $${."
QUOTED = r"""'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+\""""
PIECE = rf"\$\$\{{|\$\{{((?:{QUOTED}|[^}}'\"])*+)\}}"
"""Pattern of an escaped `$${`, or of a reference with its expression."""
# An index `.0`; quoted text and numbers are skipped.
INDEX = rf"{QUOTED}|(?<![\w.\]])\d[\w.]*|(?<=[\w\]])\.(\d+)(?!\w)"


def _operator(sign: str, *, swapped: bool = False) -> Callable[[Reference, object], Any]:
    """Arithmetic of a reference with a number or another reference, evaluated as part of it."""

    def operate(one: Reference, other: object) -> Any:
        operands = (other, one) if swapped else (one, other)
        if any(type(operand) not in (Reference, int, float) for operand in operands):
            return NotImplemented
        left, right = (
            operand.text.strip()[2:-1] if isinstance(operand, Reference) else repr(operand)
            for operand in operands
        )
        return Reference(f"${{({left}) {sign} ({right})}}")

    return operate


class Reference:
    """An expression over other fields, `${...}`, evaluated once all layers are merged.

    Raises:
        Invalid: the expression is not arithmetic on fields.
    """

    __slots__ = ("_tree", "text")

    def __init__(self, text: str) -> None:
        self.text = str(text)
        body = self.text.strip()
        if not is_reference(body):
            raise Invalid(
                f"is not a reference: it must be the whole value, such as {EXAMPLE}; only a str "
                f"and a path may have other text around it",
                hint=LITERALLY,
            )
        self._tree: ast.expr = _parse(body[2:-1])

    @property
    def path(self) -> Path | None:
        """The path of the single field named by the reference; None for arithmetic."""
        return path_of(self._tree)

    def evaluate(self, look_up: Callable[[Path], object]) -> object:
        """Compute the value.

        Raises:
            Invalid: an operation is undefined, such as a division by zero.
        """
        return evaluate(self._tree, look_up)

    def dump(self) -> str:
        """The reference as plain data."""
        return self.text

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Reference) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    # Modifiers compute with a field without checking whether a layer below set a reference.
    __add__, __radd__ = _operator("+"), _operator("+", swapped=True)
    __sub__, __rsub__ = _operator("-"), _operator("-", swapped=True)
    __mul__, __rmul__ = _operator("*"), _operator("*", swapped=True)
    __truediv__, __rtruediv__ = _operator("/"), _operator("/", swapped=True)
    __floordiv__, __rfloordiv__ = _operator("//"), _operator("//", swapped=True)


class Template(Reference):
    """A text with references inside: `out/${name}-${seed}`; `$${` is an escaped `${`.

    Raises:
        Invalid: a reference is not closed, or not arithmetic on fields.
    """

    __slots__ = ("_parts",)

    def __init__(self, text: str) -> None:
        self.text = str(text)
        self._parts: list[str | ast.expr] = []
        end = 0
        for match in re.finditer(PIECE, self.text, re.DOTALL):
            escaped = match[0] == ESCAPED
            reference = OPENING if escaped else _parse(match[1], LITERALLY)
            self._parts += [self.text[end : match.start()], reference]
            end = match.end()
        self._parts.append(self.text[end:])
        for part in self._parts[::2]:
            if isinstance(part, str) and OPENING in part:
                start = part[part.index(OPENING) :][:40]
                message = f"holds a reference that is not closed by }}: {start}"
                raise Invalid(message, hint=LITERALLY)

    @property
    def path(self) -> Path | None:
        """None, because text leads to no section."""
        return None

    def evaluate(self, look_up: Callable[[Path], object]) -> object:
        import ast

        texts: list[str] = []
        for part in self._parts:
            if isinstance(part, str):
                texts.append(part)
                continue
            value = evaluate(part, look_up)
            text = text_of(value)
            if text is None:
                kind = "null" if value is None else f"of type {type(value).__name__}"
                kind = "a section" if hasattr(type(value), "__setpoint__") else kind
                raise Invalid(
                    f"cannot be formatted: {ast.unparse(part)} is {kind}; a string accepts str, "
                    f"int, float, bool and paths"
                )
            texts.append(text)
        return literal("".join(texts))


def reference(text: str, in_text: bool) -> Reference:
    """Make the reference or template for a text that contains `${`.

    Raises:
        Invalid: the text is neither.
    """
    # In a text, the spaces around a reference are significant.
    is_whole = is_reference(text) and (not in_text or text == text.strip())
    return Template(text) if in_text and not is_whole else Reference(text)


def _parse(expression: str, hint: str = "") -> ast.expr:
    try:
        return parse(expression.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        resolver, colon, rest = expression.strip().partition(":")
        if colon and resolver in ("env", "oc.env"):
            hint = from_environment(rest.partition(",")[0].strip())
        raise Invalid(
            f"cannot be read as arithmetic on fields, as in {EXAMPLE}", hint=hint
        ) from None


def from_environment(name: str, prefix: str = "") -> str:
    """A hint about a reference that names an environment variable like a field."""
    variable = f"{prefix}__SECTION__FIELD=VALUE" if prefix else "its own environment variable"
    return (
        f'References name fields, not environment variables. In a shell write "${name}", '
        f"which the shell expands; or set the field by {variable}."
    )


def text_of(value: object) -> str | None:
    """Format a value inside a text as `show` does; None if a text cannot contain it."""
    has_text = isinstance(value, str | int | float | Enum) or hasattr(value, "as_posix")
    return for_flag(value) if has_text else None  # importing `pathlib` takes time


def ref(expression: str) -> Any:
    """A reference for a field set in Python, computed once all layers are merged.

    The expression is arithmetic on paths from the root, `model.dim * 4`, or a text with references,
    `out/${name}`. To type checkers, it has the type of any field.

    Raises:
        Invalid: the expression is not arithmetic on fields.
    """
    try:
        if refers(expression):
            return reference(expression, in_text=True)
        return Reference(f"${{{expression}}}")
    except Invalid as error:
        raise error.called("ref", expression) from None


def is_reference(text: str) -> bool:
    """True if a text is exactly one `${...}`, even an invalid one."""
    if isinstance(text, LiteralText):
        return False
    body = text.strip()
    if not (body.startswith(OPENING) and body.endswith("}")):
        return False
    match = re.match(PIECE, body, re.DOTALL)
    return body.count(OPENING) == 1 and (match is None or match.end() == len(body))


def reference_to(path: Path) -> str:
    """Format a reference to a path: `${data.sources.0}`, or `${sets['a-b'][0]}`."""
    plain = all(isinstance(part, int) or _is_name(part) for part in path)
    text = str(path[0])
    for part in path[1:]:
        if plain or (isinstance(part, str) and _is_name(part)):
            text += f".{part}"
        else:
            text += f"[{part if isinstance(part, int) else _quoted(part)}]"
    return f"${{{text}}}"


def may_refer(value: object) -> bool:
    """True if a value, or an item of it, contains a reference, as text or already parsed."""
    if isinstance(value, str):
        return refers(value)
    return isinstance(value, Reference) or any(may_refer(item) for _, item in children(value))


def _is_name(part: str) -> bool:
    return part.isascii() and part.isidentifier() and not keyword.iskeyword(part)


def _quoted(key: str) -> str:
    """Format a key for an expression, without characters that could end the reference."""
    codes = ((char, ord(char)) for char in key)
    chars = (
        char
        if char.isascii() and (char.isalnum() or char in " _-")
        else (f"\\x{code:02x}" if code < 0x100 else f"\\U{code:08x}")
        for char, code in codes
    )
    return f"'{''.join(chars)}'"


def parse(text: str) -> ast.expr:
    """Parse an expression.

    Raises:
        ValueError, SyntaxError, RecursionError, MemoryError: the text is not an expression.
    """
    import ast

    # `sources.0.name` is written as `sources[0].name`.
    indexed = re.sub(INDEX, lambda part: f"[{part[1]}]" if part[1] else part[0], text)
    tree = ast.parse(indexed, mode="eval").body
    _validate(tree)
    return tree


def path_of(node: ast.expr) -> Path | None:
    """The path of names, keys and indices that an expression stands for; None for others."""
    import ast

    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        inner = path_of(node.value)
        return None if inner is None else (*inner, node.attr)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        inner, key = path_of(node.value), node.slice.value
        if isinstance(key, int | str) and not isinstance(key, bool):
            return None if inner is None else (*inner, key)
    return None


def _validate(node: ast.expr) -> None:
    import ast

    if path_of(node) is not None:
        return
    if isinstance(node, ast.BinOp) and type(node.op).__name__ in _BINARY:
        _validate(node.left)
        _validate(node.right)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        _validate(node.operand)
    elif not (isinstance(node, ast.Constant) and type(node.value) in (int, float)):
        raise ValueError("not arithmetic")


def _power(left: float, right: float) -> float:
    # Repeated powers grow without end; sizes in configurations need no larger ones.
    if isinstance(left, int) and abs(right) * max(left.bit_length(), 1) > BITS:
        raise Invalid(f"is too large: the result may exceed {BITS} bits")
    return left**right


# By the names of operators in `ast`, which is imported only to read an expression; the signs are
# those of `__setpoint_combine__`.
_BINARY: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "Add": ("+", lambda left, right: left + right),
    "Sub": ("-", lambda left, right: left - right),
    "Mult": ("*", lambda left, right: left * right),
    "Div": ("/", lambda left, right: left / right),
    "FloorDiv": ("//", lambda left, right: left // right),
    "Mod": ("%", lambda left, right: left % right),
    "Pow": ("**", _power),
}


def evaluate(node: ast.expr, look_up: Callable[[Path], object]) -> object:
    """Compute the value of an expression.

    Raises:
        Invalid: an operation is undefined, such as a division by zero.
    """
    import ast

    path = path_of(node)
    if path is not None:
        return look_up(path)
    if isinstance(node, ast.Constant):
        return _finite(node.value, "a number in it")
    if isinstance(node, ast.UnaryOp):
        operand = _operand(node.operand, look_up, combines=False)
        return -operand if isinstance(node.op, ast.USub) else operand
    assert isinstance(node, ast.BinOp)
    left, right = _operand(node.left, look_up), _operand(node.right, look_up)
    symbol, function = _BINARY[type(node.op).__name__]
    special = [value for value in (left, right) if not isinstance(value, int | float)]
    try:
        if special:
            return special[0].__setpoint_combine__(symbol, left, right)
        result = function(left, right)
    except ZeroDivisionError:
        # Python's own words differ between versions.
        raise Invalid("cannot be computed: division by zero") from None
    except OverflowError:
        result = inf
    if isinstance(result, complex) or (isinstance(result, int) and result.bit_length() > BITS):
        raise Invalid(f"cannot be computed: the result is not a real number of at most {BITS} bits")
    if result != result:
        raise Invalid("cannot be computed: the result is not a number")
    # A result may be infinite if one of the fields is.
    return result if {left, right} & {*INFINITIES} else _finite(result, "the result")


def _finite(number: Any, name: str) -> Any:
    """Refuse a number beyond the largest float, which would overflow to infinity."""
    if number in INFINITIES:
        raise Invalid(f"cannot be computed: {name} {TOO_BIG}")
    return number


def _operand(node: ast.expr, look_up: Callable[[Path], object], combines: bool = True) -> Any:
    """A number, or a value of a class that computes with numbers by `__setpoint_combine__`."""
    import ast

    value = evaluate(node, look_up)
    if combines and hasattr(value, "__setpoint_combine__"):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Invalid(f"cannot be computed: {ast.unparse(node)} is not a number")
    return value
