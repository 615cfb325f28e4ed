"""Hook of mkdocs: pages of the reference that are made from the code, and links out of docs/."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from setpoint.cli.main import COMMANDS, command_of
from setpoint.cli.output import manual

SOURCE = Path(__file__).parents[1] / "src/setpoint"
REPOSITORY = re.compile(
    r"\]\((?:\.\./)+(?:(?:CHANGELOG|CONTRIBUTING|SECURITY|README)\.md|(?:src|tests|examples)/[^)]*)\)"
)


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    pages = {"commands": commands(), "python": python()}
    for name, text in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Take the links away that lead out of the site."""
    return re.sub(r"\[([^\]]*)" + REPOSITORY.pattern, r"\1", markdown)


def commands() -> str:
    """The manuals of all commands."""
    parts = ["# Commands\n"]
    for name, (_, about) in COMMANDS.items():
        parts.append(f"## {name}\n\n{about[0].upper()}{about[1:]}.\n")
        parts.append(f"```text\n{manual(command_of(name))}\n```\n")
    return "\n".join(parts)


def python() -> str:
    """The functions and classes of `import setpoint as sp`, read from the source."""
    parts = ["# Python\n", "[Tasks in Python](../python.md) has examples.\n"]
    stub = (SOURCE / "__init__.pyi").read_text(encoding="utf-8")
    for module, name in re.findall(r"^from (\S+) import \w+ as (\w+)$", stub, re.MULTILINE):
        node = definition(module, name)
        if node is None or not ast.get_docstring(node):
            continue
        head = f"class {name}"
        if isinstance(node, ast.FunctionDef):
            result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            head = f"{name}({ast.unparse(node.args)}){result}"
        parts.append(f"## {name}\n\n```python\nsp.{head}\n```\n")
        parts.append(f"```text\n{ast.get_docstring(node)}\n```\n")
        for method in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
                text = ast.get_docstring(method)
                parts.append(f"### {name}.{method.name}\n\n```text\n{text}\n```\n" if text else "")
    return "\n".join(parts)


def definition(module: str, name: str) -> ast.FunctionDef | ast.ClassDef | None:
    """The statement that defines a name which a module offers, also by another module."""
    path = SOURCE.joinpath(*module.split(".")[1:])
    file = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node
    stub = path / "__init__.pyi"
    lines = stub.read_text(encoding="utf-8") if stub.is_file() else file.read_text(encoding="utf-8")
    found = re.search(rf"^from (\.[\w.]+) import {name}\b", lines, re.MULTILINE)
    return definition(f"{module}{found[1]}", name) if found else None
