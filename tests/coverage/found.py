"""Whether the tests that answers name exist, without importing them."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).parents[2]


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def _texts(path: Path) -> frozenset[str]:
    """Everything in a file, and in those beside it that it imports, that can be part of an id."""
    found: set[str] = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
            beside = path.with_name(f"{node.module}.py")
            found |= _texts(beside) if beside.is_file() else set()
        elif isinstance(node, ast.Constant):
            found.add(str(node.value))
        elif isinstance(node, ast.keyword) and node.arg:
            found.add(node.arg)
        elif isinstance(node, ast.Name | ast.Attribute):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
    return frozenset(found)


def problem_of(test: str) -> str | None:
    """Why a test cannot be collected.

    Arguments:
        test: `tests/FILE.py::NAME`, with `[CASE]` where one case of several is meant.

    Returns:
        the reason; None if it is there.
    """
    place, _, rest = test.partition("::")
    name, bracket, case = rest.partition("[")
    path = ROOT / place
    if not place.startswith("tests/") or not path.is_file():
        return f"{test}: there is no file {place}"
    nodes = [n for n in _tree(path).body if isinstance(n, ast.FunctionDef) and n.name == name]
    if not nodes or not name.startswith("test_"):
        return f"{test}: there is no test {name!r} in {place}"
    if not bracket:
        return None
    decorators = [ast.unparse(decorator) for decorator in nodes[-1].decorator_list]
    if not any("parametrize" in decorator for decorator in decorators):
        return f"{test}: {name} has no cases"
    case = case.removesuffix("]")
    if not _made_of(case, _texts(path)):
        return f"{test}: {place} names no case {case!r}"
    return None


def _made_of(case: str, texts: frozenset[str]) -> bool:
    """Whether an id is one of the texts, or several of them with hyphens between."""
    if case in texts:
        return True
    return any(
        case[:at] in texts and _made_of(case[at + 1 :], texts)
        for at, sign in enumerate(case)
        if sign == "-"
    )
