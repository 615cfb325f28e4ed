"""Arithmetic on fields: what may stand inside a reference, and what it comes to."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from .errors import Invalid
from .quantity import Duration, Length, Period, combine

Path = tuple[str | int, ...]
BITS = 4096
DEPTH = 100  # operations inside operations
QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
PATH = rf"""[A-Za-z_]\w*(?:\.\w+|\[(?:{QUOTED}|[^\]'"]*)\])+"""
INDEX = rf"{QUOTED}|\.(\d+)(?!\w)"  # a key in quotes is left as it is


def parse(text: str) -> ast.expr:
    """Read an expression.

    Arguments:
        text: what stands between `${` and `}`.

    Returns:
        its tree, of nothing but arithmetic on fields.

    Raises:
        ValueError, SyntaxError, RecursionError, MemoryError: if it is anything else.
    """
    tree = ast.parse(_indexed(text), mode="eval").body
    _validate(tree)
    return tree


def _indexed(text: str) -> str:
    """The expression with paths such as `sources.0.name` written as `sources[0].name`."""
    return re.sub(PATH, lambda path: re.sub(INDEX, _bracketed, path[0]), text)


def _bracketed(part: re.Match[str]) -> str:
    return part[0] if part[1] is None else f"[{part[1]}]"


def path_of(node: ast.expr) -> Path | None:
    """The path that an expression is, if it is nothing else.

    Arguments:
        node: from `parse`, or a part of it.

    Returns:
        names, keys and indices; None for arithmetic and numbers.
    """
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


def _validate(node: ast.expr, depth: int = 0) -> None:
    if depth > DEPTH:
        raise ValueError("nested too deep")
    if path_of(node) is not None:
        return
    if isinstance(node, ast.BinOp) and isinstance(node.op, tuple(_BINARY)):
        _validate(node.left, depth + 1)
        _validate(node.right, depth + 1)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        _validate(node.operand, depth + 1)
    elif not (isinstance(node, ast.Constant) and type(node.value) in (int, float)):
        raise ValueError("not arithmetic")


def _power(left: float, right: float) -> float:
    # Repeated powers grow without end; no size in a configuration needs more than this.
    if isinstance(left, int) and abs(right) * max(left.bit_length(), 1) > BITS:
        raise Invalid("is too large a power for a configuration")
    return left**right


_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: lambda left, right: left % right,
    ast.Pow: _power,
}

# Those that lengths take.
_SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
}  # fmt: skip


def evaluate(node: ast.expr, look_up: Callable[[Path], object]) -> object:
    """Compute the value of an expression.

    Arguments:
        node: from `parse`.
        look_up: gives the value of a field, by its path from the root.

    Returns:
        a number or a length, or for a bare path whatever the field holds.

    Raises:
        Invalid: for an undefined operation, such as a division by zero.
    """
    path = path_of(node)
    if path is not None:
        return look_up(path)
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp):
        operand = _number(node.operand, look_up)
        return -operand if isinstance(node.op, ast.USub) else operand
    assert isinstance(node, ast.BinOp)
    left, right = _operand(node.left, look_up), _operand(node.right, look_up)
    try:
        if not isinstance(left, int | float) or not isinstance(right, int | float):
            return combine(_SIGNS.get(type(node.op), "**"), left, right)
        result = _BINARY[type(node.op)](left, right)
    except (ZeroDivisionError, OverflowError) as error:
        raise Invalid(f"cannot be computed: {error}") from None
    if isinstance(result, complex) or (isinstance(result, int) and result.bit_length() > BITS):
        raise Invalid("cannot be computed: the result is not a number of a usable size")
    return result


def unparse(node: ast.expr) -> str:
    """An expression as it is written.

    Arguments:
        node: from `parse`.

    Returns:
        its text.
    """
    return ast.unparse(node)


def _operand(
    node: ast.expr, look_up: Callable[[Path], object]
) -> float | Period | Length | Duration:
    """A number, or a length where the operator takes one."""
    value = evaluate(node, look_up)
    return value if isinstance(value, Period | Length | Duration) else _checked(node, value)


def _number(node: ast.expr, look_up: Callable[[Path], object]) -> float:
    return _checked(node, evaluate(node, look_up))


def _checked(node: ast.expr, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Invalid(f"cannot be computed: {ast.unparse(node)} is not a number")
    return value
