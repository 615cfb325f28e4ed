"""From the table `[sweep]` of a file to its points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from setpoint.config import FILE, ConfigError, Document, Editor, Node, Origin, Path, resolve
from setpoint.sweep_space.distribution import is_call, misspelt_call
from setpoint.sweep_space.table import TO_DRAW, Place, flattened

TABLE = "sweep"
R = TypeVar("R", bound=Node)
"""The key of a configuration file that makes it the file of a sweep."""


def read_table(root: type[R], document: Document) -> R:
    """Read the table of a file.

    Arguments:
        root: a class whose field `sweep` is the table.

    Raises:
        ConfigError: with every problem of the table.
    """
    table = document.data[TABLE]
    data = flattened(cast(Mapping[str, object], table)) if isinstance(table, dict) else table
    draft = root()
    editor = Editor(draft)
    editor.merge({TABLE: data}, Origin(FILE, document.name, place_in(document)))
    for problem in editor.problems:
        at = problem.path.split(".")
        text = (problem.value or "").strip("'\"")
        if len(at) > 2 and at[1] in ("grid", "zip") and (is_call(text) or misspelt_call(text)):
            problem.hint = TO_DRAW
    if editor.problems:
        # What is missing because it could not be read need not be reported twice.
        raise ConfigError(editor.problems)
    return resolve(draft)


def place_in(document: Document) -> Place:
    """Finds the lines of a file by flattened paths.

    Returns:
        a function from a path, whose parts may be dotted, to `file:line:column`.
    """

    def find(path: Path) -> str:
        return document.where(_as_written(document.data, path))

    return find


def _as_written(data: Any, path: Path) -> Path:
    """The keys that lead to a path in the file, where `a.b` may be one key or two."""
    parts: list[str | int] = []
    for part in path:
        parts.extend(part.split(".") if isinstance(part, str) else [part])
    written: list[str | int] = []
    node, at = data, 0
    while at < len(parts):
        # The longest key that is there; what is not there has no place of its own.
        for end in range(len(parts), at, -1):
            key: str | int = parts[at] if end == at + 1 else ".".join(map(str, parts[at:end]))
            if isinstance(node, dict) and key in node:
                node = cast(dict[object, Any], node)[key]
                break
            if isinstance(node, list) and isinstance(key, int):
                items = cast(list[Any], node)
                node = items[key] if key < len(items) else None
                break
        else:
            break
        written.append(key)
        at = end
    return tuple(written)
