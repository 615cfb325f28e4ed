"""The steps of a migration on the text of a TOML file, by way of tomlkit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..words.errors import SetpointError
from ..words.names import Path
from .chain import HEADER, Step


def rewrite_toml(text: str, steps: Sequence[Step], header: dict[str, Any]) -> str:
    """Change keys and values of a TOML text; comments and order stay.

    Arguments:
        header: the table `setpoint`, which is put on top if the file has none.

    Raises:
        SetpointError: if tomlkit is not installed.
    """
    try:
        import tomlkit
    except ModuleNotFoundError:
        raise SetpointError(
            "rewriting a TOML file with its comments needs the package tomlkit: install "
            "'setpoint[migrate]'"
        ) from None
    kit: Any = tomlkit
    for kind, first, second in steps:
        document = kit.parse(text)
        if kind == "move":
            _move(kit, document, first, second)
        elif kind == "put":
            _put(kit, document, first, second)
        elif kind == "remove":
            _remove(document, first)
        text = kit.dumps(document)
    document = kit.parse(text)
    if HEADER in document:
        for key, value in header.items():
            document[HEADER][key] = value
        return kit.dumps(document)
    # Above everything but comments that speak of the file: `#:schema` has to stay on top.
    lines = text.splitlines(keepends=True)
    top = next((n for n, line in enumerate(lines) if not line.startswith("#:")), len(lines))
    return "".join([*lines[:top], f"{HEADER} = {{schema = {header['schema']}}}\n", *lines[top:]])


def _move(kit: Any, document: Any, old: Path, new: Path) -> None:
    if old[:-1] == new[:-1] and _rename(_at(document, old[:-1]), str(old[-1]), str(new[-1])):
        return
    item = _at(document, old)
    _remove(document, old)
    # A plain value takes the remark behind it along; a table would bring its title, too.
    _put(kit, document, new, item.unwrap() if hasattr(item, "append") else item)


def _rename(section: Any, old: str, new: str) -> bool:
    """Give a key another name in its place; False where it is spread over the file."""
    container = section if hasattr(section, "body") else getattr(section, "value", None)
    body = getattr(container, "body", None)
    if body is None:
        return False
    found = [index for index, (key, _) in enumerate(body) if key is not None and key.key == old]
    if not found or any(body[index][0].is_dotted() for index in found):
        return False
    from tomlkit.items import SingleKey

    for index in found:
        _, item = body[index]
        body[index] = (SingleKey(new, sep=" = "), item)
        _forget_title(item)
    return True


def _forget_title(item: Any) -> None:
    """Let the titles `[a.b]` of a table and of those inside it be made from the keys again."""
    if hasattr(item, "display_name"):
        item.display_name = None
    for inner in getattr(item, "body", None) or ():  # a list of tables
        _forget_title(inner)
    container = getattr(item, "value", None)
    for _, inner in getattr(container, "body", None) or ():
        _forget_title(inner)


def _put(kit: Any, document: Any, path: Path, value: Any) -> None:
    node = document
    for part in path[:-1]:
        if not isinstance(part, int) and part not in node:
            node[part] = kit.table() if node is document else _fresh(kit, node)
        elif isinstance(node[part], str):
            node[part] = {"type": str(node[part])}
        node = node[part]
    node[path[-1]] = "null" if value is None else value


def _fresh(kit: Any, node: Any) -> Any:
    from tomlkit.items import InlineTable

    return kit.inline_table() if isinstance(node, InlineTable) else kit.table()


def _remove(document: Any, path: Path) -> None:
    section = _at(document, path[:-1])
    del section[path[-1]]


def _at(document: Any, path: Path) -> Any:
    for part in path:
        document = document[part]
    return document
