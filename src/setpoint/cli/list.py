"""`setpoint list`: what there is to choose from."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from setpoint.cli.command import IMPORT, JSON, Arguments, Command
from setpoint.cli.misspelt import refuse_misspelt_options
from setpoint.cli.source import prepare
from setpoint.cli.style import bold, styles, table
from setpoint.cli.value import plain
from setpoint.config import (
    Config,
    FieldInfo,
    SetpointError,
    all_fields,
    class_help,
    did_you_mean,
    field_help,
    known_cautions,
    known_tags,
    load_plugins,
    modifiers,
    plain_text,
    preset_parameters,
    preset_summary,
    presets,
    section_classes,
)

KINDS = ("presets", "modifiers", "variants", "tags", "cautions", "fields")
COMMAND = Command(
    "list",
    "[presets | modifiers | variants | tags | cautions | fields [SECTION]] [WORDS]",
    "Print what there is to choose from: presets and modifiers with what they are for, the\n"
    "variants of each section that has several, the tags with the fields they reach, the codes of\n"
    "cautions, and every field with its type, default, range, role and meaning. WORDS find what\n"
    "has all of them in its name or meaning, fields also by what other systems call them. Without\n"
    "an argument: everything but the fields.",
    [IMPORT, JSON],
    [
        ("setpoint list", "presets, modifiers, variants, tags and cautions"),
        ("setpoint list tags", "what --tag.NAME VALUE sets"),
        ("setpoint list presets --import mine", "those of your module mine.py, too"),
        ("setpoint list fields optimizer", "the fields of one section, of all its variants"),
        ("setpoint list fields learning rate", "every field that has to do with it"),
    ],
    positional=(0, sys.maxsize),
)


def run(arguments: Arguments) -> int:
    """Print the asked-for lists."""
    root = arguments.command.program.root
    prepare(arguments)
    if not arguments.command.program.is_own:
        load_what_can_be_loaded()
    refuse_misspelt_options(arguments, ())
    words = [*arguments.positional, *arguments.overrides]
    kind = words[0] if words else None
    if kind is not None and kind not in KINDS:
        meant = did_you_mean(kind, KINDS, " ")
        raise SetpointError(f"cannot list {kind!r}.{meant} One of: {', '.join(KINDS)}")
    section = " ".join(words[1:])
    wanted = [kind] if kind else list(KINDS[:-1])
    found = {name: list(_rows(root, name, section)) for name in wanted}
    if kind == "fields" and not found["fields"]:
        found["fields"] = list(searched(root, section))
        if not found["fields"]:
            raise SetpointError(
                f"there is no section or field {section!r}, and none mentions it. "
                f"{_meant(root, section)}"
            )
    elif kind is not None and kind != "fields" and section:
        matchers = [_matcher(word) for word in words[1:]]
        found[kind] = [
            row
            for row in found[kind]
            if all(any(matches(_cell(c)) for c in row.values()) for matches in matchers)
        ]
        if not found[kind]:
            names = [next(iter(row.values())) for row in _rows(root, kind, "")]
            meant = did_you_mean(section, names, " ")
            raise SetpointError(f"none of the {kind} mentions {section!r}.{meant}")
    if arguments.has("--json"):
        import json

        print(json.dumps(found, indent=2))
        return 0
    shown = {name: rows for name, rows in found.items() if rows or kind}
    for index, (name, rows) in enumerate(shown.items()):
        if kind is None:
            print(("\n" if index else "") + bold(name.capitalize()))
        print(
            fields_text(rows)
            if name == "fields"
            else table([[_cell(cell) for cell in row.values()] for row in rows])
        )
    return 0


def load_what_can_be_loaded() -> None:
    """Load the plugins of installed packages; one that is broken is told and hides only itself."""
    import sys

    from setpoint.cli.style import styled

    broken: list[SetpointError] = []
    load_plugins(broken)
    for error in broken:
        print(f"{styled('warning:', '1;33', sys.stderr)} {error}", file=sys.stderr)


def _cell(value: Any) -> str:
    """What a list for people shows of what a list for machines holds."""
    if not isinstance(value, list):
        return value
    items: list[Any] = value
    if not all(isinstance(item, dict) for item in items):
        return ", ".join(items)
    words = [
        f"{item['name']}={item['default']!r}" if "default" in item else item["name"]
        for item in items
    ]
    return f"({', '.join(words)})" if words else ""


def _meant(root: type[Config], section: str) -> str:
    from setpoint.config import place_of

    sections = [name for name, info in root.__setpoint__.fields.items() if info.type.nested]
    hint = place_of(root, section.rpartition(".")[2], section)
    return f"{hint} Sections: {', '.join(sections)}".strip()


def _rows(root: type[Config], kind: str, section: str) -> Iterator[dict[str, Any]]:
    if kind in ("presets", "modifiers"):
        table = presets if kind == "presets" else modifiers
        for name, function in sorted(table.items()):
            parameters = preset_parameters(function, skip=kind == "modifiers")
            yield {"name": name, "parameters": parameters, "help": preset_summary(function)}
    elif kind == "tags":
        for tag, paths in known_tags(root).items():
            yield {"tag": f"tag.{tag}", "fields": paths}
    elif kind == "cautions":
        for code, meaning in known_cautions(root).items():
            yield {"code": code, "help": meaning}
    elif kind == "variants":
        for path, info in all_fields(root):
            classes = section_classes(info.type) if info.type.nested else []
            for cls in classes:
                tag = cls.__setpoint__.tag
                if tag is not None:
                    yield {"field": path, "type": tag, "help": class_help(cls)}
    else:
        yield from field_rows(root, section)


def field_rows(root: type[Config], section: str = "") -> Iterator[dict[str, Any]]:
    """What is to be known of each field, for machines.

    Arguments:
        section: a section or field to stay within; empty for all.
    """
    wanted = section.replace("-", "_")
    # Variants share the fields of their family.
    fields = dict.fromkeys(all_fields(root))
    variants: dict[type, list[str]] = {}
    for path, info in fields:
        if not wanted or path == wanted or path.startswith(f"{wanted}."):
            yield _field(path, info, variants)


def _matcher(word: str) -> Callable[[str], bool]:
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
    matchers = [_matcher(word) for word in words.split() or [words]]
    found: list[list[dict[str, Any]]] = [[], [], []]
    seen: set[int] = set()
    for path, info in all_fields(root):
        if id(info) in seen:  # of a section in several places the first counts
            continue
        seen.add(id(info))
        row = _field(path, info, {})
        places = (path, " ".join(info.also_called), row["help"])
        if not all(any(map(matches, places)) for matches in matchers):
            continue
        named = any(matches(info.name) for matches in matchers)
        called = [n for n in info.also_called if all(matches(n) for matches in matchers)]
        rank = 0 if named else 1 if called else 2
        row["help"] = re.split(r"(?<=\.)\s", row["help"], maxsplit=1)[0]
        if called:
            row["also_called"] = called
        found[rank].append(row)
    for rows in found:
        yield from rows


def _field(path: str, info: FieldInfo, variants: dict[type, list[str]]) -> dict[str, Any]:
    """What is to be known of a field; `variants` keeps what was found for its class."""
    kind = info.type
    row: dict[str, Any] = {"path": path, "type": kind.describe()}
    owner = info.owner
    if owner.__setpoint__.tag is not None:
        row["variant"] = owner.__setpoint__.tag
    else:
        if owner not in variants:
            variants[owner] = _some_variants(owner)
        if variants[owner]:
            row["variants"] = variants[owner]
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


def _some_variants(owner: type[Config]) -> list[str]:
    """The variants that have the fields of a class, where others of the family have not."""
    mine = list(owner.__setpoint__.variants)
    family = max(
        len(base.__setpoint__.variants) for base in owner.__mro__ if issubclass(base, Config)
    )
    return mine if len(mine) < family else []


def _default(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(plain_text, value)) or "[]"
    return plain_text(value)


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
            facts.append(f"default {_default(row['default'])}")
        facts.append(row["role"])
        blocks.append(bold(row["path"]) + (f"  ({', '.join(of)})" if of else ""))
        blocks.append(f"    {'; '.join(facts)}")
        if row["help"]:
            blocks.append(dim(wrapped(row["help"], "    ")))
        if "also_called" in row:
            blocks.append(dim(wrapped(f"also called {', '.join(row['also_called'])}", "    ")))
    return "\n".join(blocks)
