"""Help texts: the docstring under a field, read from the source when help is printed."""

from __future__ import annotations

import functools
import re
import sys
from typing import TYPE_CHECKING

from setpoint.config import Node

if TYPE_CHECKING:
    import ast


# What stands in a file, as far as the docstrings under fields depend on it: a field with its
# docstring, in one line or with its brackets closed at its own indent; the head of a class or a
# function; any other text in triple quotes; the head of another block.
_STATEMENT = re.compile(
    r"""
    \n(?P<indent>\ +)(?P<field>(?!(?:else|try|finally|lambda)\b)[^\W\d]\w*)\ *:
      [^\n;]* (?: (?<=[(\[{])\n (?: (?:(?P=indent)\ [^\n]*)?\n )*+ (?P=indent)[)\]}][^\n;]* )*
      (?: \n\ *(?:\#[^\n]*)? )*
      \n(?P=indent)\"{3}(?P<doc>(?:[^"\\]++|"(?!""))*+)\"{3}[ ]*(?:\#[^\n]*)?(?=\n)
  | \n(?P<head>\ *)(?:async\ +)?(?P<kind>class|def)\ +(?P<name>\w+)[^\n]*
  | \n(?P<before>[^"'\#\n]*)\"{3}(?:[^"\\]++|"(?!""))*+\"{3}
  | \n(?P<block>\ *)[^\s"'\#][^\n]*:\ *(?:\#[^\n]*)?(?=\n)
    """,
    re.VERBOSE,
)
# A field and its docstring, each on lines of their own at a known indent.
_FIELD = (
    r"\n+INDENT((?!(?:else|try|finally|lambda)\b)[^\W\d]\w*)\ *:[^\n;]*(?<![(\[{])"
    r'\nINDENT"""((?:[^"\\]++|"(?!""))*+)"""(?=\n)'
)
_UNSURE = ("\\\n", "'''", "\t", "\f", "\r")  # lines that go on, other quotes, and tabs
# A docstring in single quotes, in brackets or with a letter before it; or a text in a list.
_QUOTED = re.compile(
    r"""\n\ +(?:[A-Za-z]{1,2}|\()?(?:"(?!"")|')[^\n]*["')]\ *(?:\#[^\n]*)?(?=\n)"""
)
_GOES_ON = ("(", "[", "{", ",", "+", "|", "&", "%", "=", ":", " if", " else", " and", " or", " in")
_PREFIX = re.compile(r"[A-Za-z]{1,2}|\(")


def _quickly(text: str) -> dict[str, dict[str, str]] | None:
    """Field docstrings as `_classes` gives them; None for a file for which the parser is needed."""
    text = f"\n{text}\n"
    if any(sign in text for sign in _UNSURE) or _quotes_a_docstring(text):
        return None
    found: dict[str, dict[str, str]] = {}
    docs = end = 0
    plain: dict[str, re.Pattern[str]] = {}
    # The open blocks: indent, qualified name, and the docstrings of a class.
    blocks: list[tuple[int, str, dict[str, str] | None]] = []
    while match := _STATEMENT.search(text, end):
        end = match.end()
        indent, field, doc, head, kind, name, before, block = match.groups()
        if field is not None:
            docs += 1
            while blocks and blocks[-1][0] >= len(indent):
                blocks.pop()
            own = blocks[-1][2] if blocks else None
            if own is None:
                continue
            own[field] = " ".join(doc.split())
            if indent not in plain:
                plain[indent] = re.compile(_FIELD.replace("INDENT", indent))
            while row := plain[indent].match(text, end):
                own[row[1]] = " ".join(row[2].split())
                docs, end = docs + 1, row.end()
        elif name is not None:
            while blocks and blocks[-1][0] >= len(head):
                blocks.pop()
            prefix = blocks[-1][1] if blocks else ""
            if kind == "class":
                found[prefix + name] = {}
                blocks.append((len(head), f"{prefix}{name}.", found[prefix + name]))
            else:
                blocks.append((len(head), f"{prefix}{name}.<locals>.", None))
        elif before is not None:
            docs += 1
            if ";" in before or _PREFIX.fullmatch(before.strip()):
                return None
            if before and not before.strip() and not _opens_block(text, match.start()):
                return None  # a docstring of a field that is written in some other way
        else:
            stands_alone = text[match.start() + 1 + len(block)] not in ")]}"
            while blocks and blocks[-1][0] >= len(block) + (not stands_alone):
                blocks.pop()
            if stands_alone:
                blocks.append((len(block), blocks[-1][1] if blocks else "", None))
    return found if 2 * docs == text.count('"""') else None


def _quotes_a_docstring(text: str) -> bool:
    """Whether a text in other quotes may stand under a field, rather than inside an expression."""
    end = -1
    for match in _QUOTED.finditer(text):
        start = match.start()
        if start != end:  # else it goes on with the text of the line before
            line = _line_before(text, start)
            if "#" in line or not line.endswith(_GOES_ON):
                return True
        end = match.end()
    return False


def _line_before(text: str, end: int) -> str:
    """The last line with code before a place, without the spaces around it."""
    while end > 0:
        start = text.rfind("\n", 0, end) + 1
        line = text[start:end].strip()
        if line and line[0] != "#":
            return line
        end = start - 1
    return ""


def _opens_block(text: str, end: int) -> bool:
    """Whether the last line with code before a place is the head of a block."""
    line = _line_before(text, end)
    return not line or line[-1] == ":" or line.partition("#")[0].rstrip()[-1:] == ":"


@functools.cache
def _classes(filename: str) -> dict[str, dict[str, str]]:
    """Field docstrings of all classes of a file, by qualified class name."""
    import linecache

    text = "".join(linecache.getlines(filename))
    found = _quickly(text)
    return _exactly(text) if found is None else found


def _exactly(text: str) -> dict[str, dict[str, str]]:
    """Field docstrings as `_classes` gives them, by Python's own parser."""
    import ast

    try:
        tree = ast.parse(text)
    except SyntaxError:
        return {}
    found: dict[str, dict[str, str]] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                found[prefix + child.name] = _field_docs(child)
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                visit(child, f"{prefix}{child.name}.<locals>.")
            elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                visit(child, prefix)

    visit(tree, "")
    return found


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
    """The help text of a field: the docstring that stands under it in the class.

    Arguments:
        cls: the config class; inherited fields are found in the class that declares them.
    """
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
