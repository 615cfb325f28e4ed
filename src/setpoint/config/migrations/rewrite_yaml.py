"""The steps of a migration on the text of a YAML file, by way of ruamel.yaml's round trip."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from ..words.names import Path
from .chain import HEADER, Step


def rewrite_yaml(text: str, steps: Sequence[Step], header: dict[str, Any]) -> str:
    """Change keys and values of a YAML text; comments, quotes and order stay.

    Arguments:
        header: the mapping `setpoint`, which is put on top if the file has none.
    """
    from ruamel.yaml import YAML

    kit: Any = YAML()
    kit.preserve_quotes = True
    kit.width = 4096
    kit.version = None
    kit.indent(**_indents(text))
    document: Any = kit.load(text)
    for kind, first, second in steps:
        if kind == "move":
            _move(document, first, second)
        elif kind == "put":
            _put(document, first, second)
        elif kind == "remove":
            _remove(_at(document, first[:-1]), first[-1])
    if HEADER in document:
        document[HEADER].update(header)
    else:
        from ruamel.yaml.comments import CommentedMap

        table: Any = CommentedMap(header)
        table.fa.set_flow_style()
        document.insert(0, HEADER, table)
    out = io.StringIO()
    kit.dump(document, out)
    return out.getvalue()


def _move(document: Any, old: Path, new: Path) -> None:
    section = _at(document, old[:-1])
    value = section[old[-1]]
    comments = section.ca.items.pop(old[-1], None)
    place = list(section).index(old[-1])
    del section[old[-1]]
    target = _section(document, new)
    target.insert(place if target is section else len(target), new[-1], value)
    if comments is not None:
        target.ca.items[new[-1]] = comments


def _remove(section: Any, key: str | int) -> None:
    """Take a key away; the comment lines below it, which are about the next key, stay."""
    keys: list[Any] = list(section) if hasattr(section, "keys") else []
    tokens = section.ca.items.pop(key, None) or ()
    below = "".join(token.value.partition("\n")[2] for token in tokens if hasattr(token, "value"))
    after = keys[keys.index(key) + 1 :] if keys else []
    del section[key]
    if after and below.strip():
        lines = [line.strip().removeprefix("#").removeprefix(" ") for line in below.splitlines()]
        section.yaml_set_comment_before_after_key(after[0], before="\n".join(lines))


def _put(document: Any, path: Path, value: Any) -> None:
    _section(document, path)[path[-1]] = value


def _section(document: Any, path: Path) -> Any:
    """The mapping or list that a value is to stand in, made where there is none."""
    from ruamel.yaml.comments import CommentedMap

    node = document
    for part in path[:-1]:
        if not isinstance(part, int) and part not in node:
            node[part] = CommentedMap()
        elif isinstance(node[part], str):
            node[part] = CommentedMap({"type": str(node[part])})
        node = node[part]
    return node


def _at(document: Any, path: Path) -> Any:
    for part in path:
        document = document[part]
    return document


def _indents(text: str) -> dict[str, int]:
    """How far the file indents, going by the first line of each kind that is indented."""
    lines = [line for line in text.splitlines() if line.strip() and line.strip()[0] != "#"]
    plain = [line for line in lines if not line.lstrip().startswith("-")]
    steps = [len(line) - len(line.lstrip()) for line in plain]
    mapping = next((step for step in steps if step), 2)
    lists = [line for line in lines if line.lstrip().startswith("- ")]
    offset = min((len(line) - len(line.lstrip()) for line in lists), default=mapping)
    return {"mapping": mapping, "sequence": offset + 2, "offset": offset}
