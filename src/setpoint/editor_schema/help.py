"""Help texts: the docstring under a field, read from the source when help is printed."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

from setpoint.config.values.node import Node

if TYPE_CHECKING:
    import ast


@functools.cache
def _classes(filename: str) -> dict[str, dict[str, str]]:
    """Field docstrings of all classes of a file, by qualified class name."""
    import ast
    import linecache

    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except SyntaxError:
        return {}
    classes: dict[str, dict[str, str]] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                classes[prefix + child.name] = _field_docs(child)
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                visit(child, f"{prefix}{child.name}.<locals>.")
            elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                visit(child, prefix)

    visit(tree, "")
    return classes


def _field_docs(node: ast.ClassDef) -> dict[str, str]:
    import ast

    docs: dict[str, str] = {}
    for statement, after in zip(node.body, node.body[1:], strict=False):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        value = after.value if isinstance(after, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            docs[statement.target.id] = " ".join(value.value.split())
    return docs


def field_help(cls: type[Node], name: str) -> str:
    """The help text of a field: the docstring below it in the class that declares it."""
    info = cls.__setpoint__.fields.get(name)
    if info is None:
        return ""
    added = cls.__setpoint__.added.get(name)
    if added is not None:
        return class_help(added)
    for base in info.owner.__mro__:  # a class that changes a default need not repeat the text
        filename = getattr(sys.modules.get(base.__module__), "__file__", None)
        if filename and hasattr(base, "__setpoint__"):
            text = _classes(filename).get(base.__qualname__, {}).get(name, "")
            if text:
                return text
    return ""


def class_help(cls: type[Node]) -> str:
    """The first line of a config class's docstring."""
    return (cls.__doc__ or "").strip().partition("\n")[0]
