"""The fields of a root, as rows for machines and as text for people."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from setpoint.cli.output import styles
from setpoint.config import (
    Config,
    FieldInfo,
    all_fields,
    for_flag,
    foreign_table,
    plain,
)
from setpoint.editor_schema.help import field_help


def field_rows(root: type[Config], section: str = "") -> Iterator[dict[str, Any]]:
    """What is to be known of each field, for machines.

    Arguments:
        section: a section or field to stay within; empty for all.
    """
    wanted = section.replace("-", "_")
    for path, info in dict.fromkeys(all_fields(root)):  # variants share fields of their family
        if not wanted or path == wanted or path.startswith(f"{wanted}."):
            yield _field(path, info)


def word_finder(word: str) -> Callable[[str], bool]:
    """Whether a text has a word, or one that begins with it, in it; `_`, `-` and space are one."""
    parts = [re.escape(part) for part in re.split(r"[\W_]+", word) if part]
    pattern = re.compile(r"(?<![^\W_])" + r"[\W_]+".join(parts), re.IGNORECASE)
    return lambda text: bool(parts) and pattern.search(text) is not None


def searched(root: type[Config], words: str) -> Iterator[dict[str, Any]]:
    """The fields that have to do with words: by name, by a name of other systems, by their help.

    Arguments:
        words: what is looked for, with spaces between; each must stand somewhere.

    Returns:
        a mapping for each field, as `field_rows` gives them, names first; of its help the first
        sentence, and `also_called` where a word stands there.
    """
    called: dict[str, list[str]] = {}
    for name, entry in foreign_table(root).items():
        for path in entry.fields:
            called.setdefault(path, []).append(name.lstrip("."))
    matchers = [word_finder(word) for word in words.split() or [words]]
    found: list[list[dict[str, Any]]] = [[], [], [], []]
    exact = re.sub(r"[\W_]+", "_", words)
    seen: set[int] = set()
    for path, info in all_fields(root):
        if id(info) in seen:  # of a section in several places the first counts
            continue
        seen.add(id(info))
        row = _field(path, info)
        others = called.get(path, [])
        places = (path, " ".join(others), row["help"])
        if not all(any(map(matches, places)) for matches in matchers):
            continue
        named = any(matches(info.name) for matches in matchers)
        others = [name for name in others if all(matches(name) for matches in matchers)]
        rank = 0 if info.name == exact else 1 if named else 2 if others else 3
        row["help"] = re.split(r"(?<=\.)\s", row["help"], maxsplit=1)[0]
        if others:
            row["also_called"] = others
        found[rank].append(row)
    for rows in found:
        yield from rows


def _field(path: str, info: FieldInfo) -> dict[str, Any]:
    """What is to be known of a field."""
    kind = info.type
    row: dict[str, Any] = {"path": path, "type": kind.describe()}
    owner = info.owner
    if owner.__setpoint__.tag is not None:
        row["variant"] = owner.__setpoint__.tag
    elif some := _some_variants(info):
        row["variants"] = some
    if info.derived:
        row["derived"] = True
    elif info.required:
        row["required"] = True
    elif not kind.nested:
        row["default"] = plain(kind.dump(info.initial()))
    for bounds in (info.bounds, info.item_bounds):
        if bounds:
            row["range"] = bounds.describe() + (" each" if bounds is info.item_bounds else "")
    if info.environment is not None:
        row["environment"] = info.environment
    row["role"] = info.role.name if info.role else "identity"
    row["help"] = field_help(owner, info.name)
    return row


def _some_variants(info: FieldInfo) -> list[str]:
    """The variants that have a field, where others of the family have none or their own."""
    mine = [
        tag
        for tag, variant in info.owner.__setpoint__.variants.items()
        if variant.__setpoint__.fields.get(info.name) is info
    ]
    family = max(
        len(base.__setpoint__.variants) for base in info.owner.__mro__ if issubclass(base, Config)
    )
    return mine if len(mine) < family else []


def fields_text(rows: Sequence[dict[str, Any]]) -> str:
    """Fields for people.

    Arguments:
        rows: as `field_rows` gives them.

    Returns:
        two or three lines for each, and one more with names of other systems that were found.
    """
    bold, dim, wrapped = styles()
    blocks: list[str] = []
    for row in rows:
        of = [row["variant"]] if "variant" in row else row.get("variants", [])
        facts = [row["type"], *(word for word in ("required", "derived") if word in row)]
        if "range" in row:
            facts.append(row["range"])
        if "environment" in row:
            facts.append(f"environment {row['environment']}")
        if "default" in row:
            facts.append(f"default {for_flag(row['default'])}")
        facts.append(row["role"])
        blocks.append(bold(row["path"]) + (f"  ({', '.join(of)})" if of else ""))
        blocks.append(f"    {'; '.join(facts)}")
        if row["help"]:
            blocks.append(dim(wrapped(row["help"], "    ")))
        if "also_called" in row:
            blocks.append(dim(wrapped(f"also called {', '.join(row['also_called'])}", "    ")))
    return "\n".join(blocks)
