"""`setpoint list`: what there is to choose from."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from setpoint.cli.fields import field_rows, fields_text, searched, word_finder
from setpoint.cli.options import IMPORT, JSON, Arguments, Command, refuse_misspelt_options
from setpoint.cli.output import bold, styled, table
from setpoint.cli.source import prepare
from setpoint.config import (
    Config,
    SetpointError,
    all_fields,
    did_you_mean,
    known_cautions,
    known_tags,
    load_plugins,
    location_hint,
    modifiers,
    preset_parameters,
    preset_summary,
    presets,
    section_classes,
)
from setpoint.editor_schema.help import class_help

KINDS = ("presets", "modifiers", "variants", "tags", "cautions", "fields")
COMMAND = Command(
    "list",
    "[presets | modifiers | variants | tags | cautions | fields [SECTION]] [WORDS]",
    "List presets, modifiers, the variants of each section, tags with the fields they set,\n"
    "caution codes, and fields with type, default, range, role and help. WORDS search names and\n"
    "help for entries that contain all of them; fields are also found by their names in other\n"
    "systems. Without an argument: everything but the fields.",
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


@COMMAND
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
        matchers = [word_finder(word) for word in words[1:]]
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
    """Load the plugins of installed packages; a broken one is reported and hides only itself."""
    import sys

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
    sections = [name for name, info in root.__setpoint__.fields.items() if info.type.nested]
    hint = location_hint(root, section)
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
