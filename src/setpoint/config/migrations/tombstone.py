"""The hint for a key that was a field once, from the declarations of the migrations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..schema.class_info import versioned
from ..schema.tree import classes_at, classes_below
from ..values.node import Node
from ..words.names import Path, dotted
from .chain import Operation, Tree, chain, filled


def former(root: type[Node], path: str, file: str | None = None) -> str:
    """The sentence for an unknown key that older schemas had.

    Arguments:
        file: the file that holds it; None for flags, variables and Python.

    Returns:
        the sentence; the empty string if no schema had the key.
    """
    if root.__setpoint__.migrations is None:
        return ""
    operations = chain(root)
    found = _match(operations, path)
    if found is None and not _exists(root, tuple(path.split("."))):
        found = _match(operations, path, whole=True)
    if found is None:
        return ""
    operation, old = found
    if len(path.split(".")) < len(old.split(".")):
        # A whole section has gone elsewhere, field by field.
        sentence, now = f"{path} is not a section since schema {operation.schema}", None
    else:
        sentence, now = operation.sentence(old), _today(operations, operation, old, path)
    if file is not None:
        return f"{sentence}; run {root.__setpoint__.command(f'migrate {file}')}."
    return f"{sentence}; write {now}." if now else f"{sentence.rstrip('.')}."


def former_in(cls: type[Node], key: str) -> str:
    """The sentence for an unknown key of a section, whose root is not known.

    Returns:
        the sentence; the empty string if no schema of any root that holds the section had the key.
    """
    for root in versioned:
        if cls not in classes_below(root):
            continue
        for operation in chain(root):
            for old in operation.old_keys():
                section, _, name = old.rpartition(".")
                above = tuple(section.split(".")) if section else ()
                if operation.of not in (None, cls.__setpoint__.tag):
                    continue
                if name == key.replace("-", "_") and cls in classes_at(root, above):
                    return former(root, old)
    return ""


def oldest_schema(root: type[Node], data: Mapping[str, Any]) -> int | None:
    """The schema that data without a header must be of, going by the keys that it has.

    Returns:
        the last schema that still had the first of the keys to go; None if it has none of them.
    """
    tree = Tree(data)
    for operation in chain(root):
        for old in operation.old_keys():
            if any(not _exists(root, place) for place in operation.places(tree, old)):
                return operation.schema - 1
    return None


def _match(
    operations: list[Operation], path: str, whole: bool = False
) -> tuple[Operation, str] | None:
    """The last change that took a key away; with `whole`, something of the section it means."""
    words = path.replace("-", "_").split(".")
    for operation in reversed(operations):
        for old in operation.old_keys():
            parts = old.split(".")
            pairs = zip(parts, words, strict=False)
            if len(parts) <= len(words) and all(part in ("*", word) for part, word in pairs):
                return operation, old
            if whole and parts[: len(words)] == words:
                return operation, old
    return None


def _today(operations: list[Operation], first: Operation, old: str, path: str) -> str | None:
    """The path that stands for an old one today."""
    new = first.new_key(old)
    if new is None:
        return None
    parts, words = old.split("."), path.split(".")
    place = filled(old, new, tuple(words[: len(parts)]))
    here = dotted((*place, *words[len(parts) :]))
    later = operations[operations.index(first) + 1 :]
    found = _match(later, here)
    return here if found is None else _today(later, *found, here)


def _exists(root: type[Node], path: Path) -> bool:
    """Whether a path leads to a field of today, in any variant."""
    return any(
        str(path[-1]).replace("-", "_") in cls.__setpoint__.fields
        for cls in classes_at(root, path[:-1])
    )
