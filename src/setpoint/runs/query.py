"""Conditions on runs: `optimizer.lr > 1e-4 and evaluation.held_out_loss < 1.2 or tags ~ base`."""

from __future__ import annotations

import ast
import fnmatch
import operator
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from setpoint.config import ABSENT, SetpointError, did_you_mean
from setpoint.report.goodput import STATUSES

Look = Callable[[str], Any]
"""Value of a run by name; `ABSENT` if it has none."""
Condition = Callable[[Look], bool]
"""True for a run that matches the query."""

OPERATORS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
TOKEN = re.compile(
    r"""(?P<operator><=|>=|==|!=|<|>|=|~)|(?P<quoted>"[^"]*"|'[^']*')|(?P<word>[^\s()<>=!~"']+)"""
)
PYTHON = {"=": "==", "~": "in"}
"""Python's operators for those of conditions."""


class Query(NamedTuple):
    """A condition and the fields it mentions."""

    holds: Condition
    names: tuple[str, ...]


def parse(text: str) -> Query:
    """Parse a condition.

    Comparisons `NAME OPERATOR VALUE` with `<`, `<=`, `>`, `>=`, `=`, `!=` and `~` (a text that
    contains the value, or matches its `*` and `?`; a list with such an entry), combined with `and`,
    `or`, `not` and parentheses. A comparison with a missing value is false, except `!=`.

    Raises:
        SetpointError: the text has another form, or names an unknown status.
    """
    names: dict[str, None] = {}
    try:
        tree = ast.parse(TOKEN.sub(_in_python, " ".join(text.splitlines())).strip(), mode="eval")
        return Query(_condition(tree.body, names), tuple(names))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SetpointError(
            f"the condition cannot be read: {text!r}: expected NAME OPERATOR VALUE, with one of < "
            f"<= > >= = != ~\nValid: comparisons joined by and, or, not, as in 'optimizer.lr > "
            f"1e-4 and val.loss < 1.2'; a value with spaces or brackets needs quotes"
        ) from None


def _in_python(match: re.Match[str]) -> str:
    """A token as Python code, with words and quoted text as `word['...']` and `quoted['...']`."""
    kind, token = match.lastgroup, match[0]
    if kind == "operator" or token in ("and", "or", "not"):
        return f" {PYTHON.get(token, token)} "
    text = token[1:-1] if kind == "quoted" else token
    return f"{kind}[{text!r}]"


def _condition(node: ast.expr, names: dict[str, None]) -> Condition:
    """Compile an expression of `and`, `or`, `not` and comparisons."""
    match node:
        case ast.BoolOp(op, values):
            parts = [_condition(value, names) for value in values]
            combine = all if isinstance(op, ast.And) else any
            return lambda look: combine(part(look) for part in parts)
        case ast.UnaryOp(ast.Not(), operand):
            inner = _condition(operand, names)
            return lambda look: not inner(look)
        case ast.Compare(
            ast.Subscript(ast.Name("word"), ast.Constant(str(name))),
            [sign],
            [ast.Subscript(ast.Name(kind), ast.Constant(str(value)))],
        ) if not isinstance(sign, ast.NotIn):
            if name == "status" and not isinstance(sign, ast.In) and value not in STATUSES:
                hint = did_you_mean(value, STATUSES, " ")
                raise SetpointError(
                    f"unknown status {value!r}.{hint}\nValid: {', '.join(STATUSES)}"
                )
            names[name] = None
            return _comparison(name, sign, value, kind == "quoted")
        case _:
            raise ValueError("no comparison")


def _comparison(name: str, operator: ast.cmpop, text: str, quoted: bool) -> Condition:
    expected = text if quoted else _value(text)

    def holds(look: Look) -> bool:
        value = look(name)
        if isinstance(operator, ast.NotEq):
            return value is ABSENT or not _equal(value, expected)
        if value is ABSENT:
            return False
        if isinstance(operator, ast.Eq):
            return _equal(value, expected)
        if isinstance(operator, ast.In):
            return _like(value, text)
        if isinstance(expected, float) and isinstance(value, str):
            # Texts that begin with a number, such as durations, also compare as numbers: `100
            # steps`.
            head = _value(value.partition(" ")[0])
            value = head if isinstance(head, float) else value
        try:
            return OPERATORS[type(operator)](value, expected)
        except TypeError:
            return False

    return holds


def _equal(value: Any, expected: Any) -> bool:
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    return value == expected or (isinstance(value, str) and value == str(expected))


def _like(value: Any, text: str) -> bool:
    pattern = text if any(character in text for character in "*?[") else f"*{text}*"
    values = value if isinstance(value, list | tuple) else [value]
    return any(fnmatch.fnmatchcase(str(item), pattern) for item in values)


def _value(text: str) -> Any:
    if text in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[text]
    try:
        return float(text)
    except ValueError:
        return text
