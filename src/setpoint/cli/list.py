"""`setpoint list` and `schema`: presets, modifiers, variants and fields, and the JSON Schema."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from setpoint.cli.options import (
    IMPORT,
    INFERENCE,
    JOB_KIND,
    JSON,
    Arguments,
    Command,
    Option,
    Program,
)
from setpoint.cli.output import bold, emit, print_or_write, styled, styles, table
from setpoint.cli.source import prepare
from setpoint.config import (
    Config,
    FieldInfo,
    SetpointError,
    all_fields,
    did_you_mean,
    nearest,
    plain,
)
from setpoint.config.draft.hints import foreign_table, location_hint
from setpoint.config.layers.presets import (
    load_plugins,
    modifiers,
    preset_parameters,
    preset_summary,
    presets,
)
from setpoint.config.resolving.checks import known_cautions
from setpoint.config.schema.class_info import known_tags
from setpoint.config.types.compound import section_classes
from setpoint.config.words.text import for_flag
from setpoint.editor_schema.help import class_help, field_help

KINDS = ("presets", "modifiers", "variants", "tags", "cautions", "fields")


@Command("list [KIND] [WORD...]", IMPORT, JSON)
def list_command(arguments: Arguments) -> int:
    """List presets, modifiers, variants, tags, cautions or fields.

    KIND is one of presets, modifiers, variants (of each section), tags (with the fields they set),
    cautions (codes) and fields (with type, default, range, role and help); without it everything
    except the fields is printed. WORDS select the entries whose name or help contains all of them;
    fields are also found by their names in other systems. For fields, a WORD may be a section.

    Examples:
        setpoint list  presets, modifiers, variants, tags and cautions
        setpoint list tags  what --tag.NAME VALUE sets
        setpoint list presets --import mine  also those of your module mine.py
        setpoint list fields optimizer  the fields of one section, of all its variants
        setpoint list fields learning rate  every field about the learning rate
    """
    root = arguments.command.program.root
    prepare(arguments)
    if not arguments.command.program.is_own:
        load_installed_plugins()
    words = arguments.positional
    if words and words[0] not in KINDS:
        sections = {next(iter(row.values())) for row in _rows(root, "variants")}
        close = nearest(words[0], KINDS, 1) or nearest(words[0], sections, 1)
        kind = "variants " if close and close[0] in sections else ""
        meant = f" Did you mean {kind}{close[0]}?" if close else ""
        raise SetpointError(f"cannot list {words[0]!r}.{meant}\nValid: {', '.join(KINDS)}")
    if words:
        rows = {words[0]: _matching_rows(root, words[0], words[1:])}
    else:
        rows = {kind: list(_rows(root, kind)) for kind in KINDS[:-1]}

    def text() -> str:
        parts: list[str] = []
        for kind, entries in rows.items():
            if kind == "fields":
                return fields_text(entries)
            lines = table([[_cell(cell) for cell in row.values()] for row in entries])
            if words:
                return lines
            parts += [f"{bold(kind.capitalize())}\n{lines}"] if entries else []
        return "\n\n".join(parts)

    emit(arguments, rows, text)
    return 0


def _matching_rows(root: type[Config], kind: str, words: Sequence[str]) -> list[dict[str, Any]]:
    """The entries of a list that mention all words."""
    text = " ".join(words)
    if kind == "fields":
        if rows := list(field_rows(root, text)) or list(_search_fields(root, text)):
            return rows
        sections = [name for name, info in root.__setpoint__.fields.items() if info.type.nested]
        hint = location_hint(root, text)
        raise SetpointError(
            f"no section or field is named {text!r} or mentions it. "
            + f"{hint} Sections: {', '.join(sections)}".strip()
        )
    every = list(_rows(root, kind))
    matchers = [word_finder(word) for word in words]
    rows = [
        row
        for row in every
        if all(any(matches(_cell(cell)) for cell in row.values()) for matches in matchers)
    ]
    if words and not rows:
        meant = did_you_mean(text, [next(iter(row.values())) for row in every], " ")
        raise SetpointError(f"none of the {kind} mentions {text!r}.{meant}")
    return rows


def load_installed_plugins() -> None:
    """Load plugins from installed packages; a broken one is reported and hides only itself."""
    broken: list[SetpointError] = []
    load_plugins(broken)
    for error in broken:
        print(f"{styled('warning:', '1;33', sys.stderr)} {error}", file=sys.stderr)


def _cell(value: Any) -> str:
    """The text of a value of an entry."""
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


def _rows(root: type[Config], kind: str) -> Iterator[dict[str, Any]]:
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
    else:
        variants = (  # the same for every variant that has the field
            (path, cls)
            for path, info in all_fields(root)
            if info.type.nested
            for cls in section_classes(info.type)
            if cls.__setpoint__.tag is not None
        )
        for path, cls in dict.fromkeys(variants):
            yield {"field": path, "type": cls.__setpoint__.tag, "help": class_help(cls)}


def field_rows(root: type[Config], section: str = "") -> Iterator[dict[str, Any]]:
    """Facts about each field, or about those within a section."""
    prefix = section.replace("-", "_")
    for path, info in dict.fromkeys(all_fields(root)):  # variants share fields of their family
        if not prefix or path == prefix or path.startswith(f"{prefix}."):
            yield _field(path, info)


def word_finder(word: str) -> Callable[[str], bool]:
    """Predicate for text that has a word with this prefix; `_`, `-` and space are equivalent."""
    parts = [re.escape(part) for part in re.split(r"[\W_]+", word) if part]
    pattern = re.compile(r"(?<![^\W_])" + r"[\W_]+".join(parts), re.IGNORECASE)
    return lambda text: bool(parts) and pattern.search(text) is not None


def _search_fields(root: type[Config], words: str) -> Iterator[dict[str, Any]]:
    """The fields with words in their names, other systems' names, or help; names come first."""
    called: dict[str, list[str]] = {}
    for name, entry in foreign_table(root).items():
        for path in entry.fields:
            called.setdefault(path, []).append(name.lstrip("."))
    matchers = [word_finder(word) for word in words.split() or [words]]
    ranked: list[list[dict[str, Any]]] = [[], [], [], []]
    exact = re.sub(r"[\W_]+", "_", words)
    listed: set[int] = set()
    for path, info in all_fields(root):
        if id(info) in listed:  # a shared section is listed once
            continue
        listed.add(id(info))
        row = _field(path, info)
        foreign_names = called.get(path, [])
        places = (path, " ".join(foreign_names), row["help"])
        if not all(any(map(matches, places)) for matches in matchers):
            continue
        named = any(matches(info.name) for matches in matchers)
        foreign_names = [
            name for name in foreign_names if all(matches(name) for matches in matchers)
        ]
        rank = 0 if info.name == exact else 1 if named else 2 if foreign_names else 3
        row["help"] = re.split(r"(?<=\.)\s", row["help"], maxsplit=1)[0]
        if foreign_names:
            row["also_called"] = foreign_names
        ranked[rank].append(row)
    for rows in ranked:
        yield from rows


def _field(path: str, info: FieldInfo) -> dict[str, Any]:
    """Facts about a field."""
    kind = info.type
    row: dict[str, Any] = {"path": path, "type": kind.describe()}
    owner = info.owner
    tag, variants = owner.__setpoint__.tag, _some_variants(info)
    if tag is not None and len(variants) < 2:
        row["variant"] = tag
    elif variants:
        row["variants"] = variants
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
    """The variants that have a field, unless all variants share it."""
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
    """Fields as text: a heading, facts, help, and matching names in other systems."""
    bold, dim, wrapped = styles()
    blocks: list[str] = []
    for row in rows:
        variants = [row["variant"]] if "variant" in row else row.get("variants", [])
        facts = [row["type"], *(word for word in ("required", "derived") if word in row)]
        if "range" in row:
            facts.append(row["range"])
        if "environment" in row:
            facts.append(f"environment {row['environment']}")
        if "default" in row:
            facts.append(f"default {for_flag(row['default'])}")
        facts.append(row["role"])
        blocks.append(bold(row["path"]) + (f"  ({', '.join(variants)})" if variants else ""))
        blocks.append(f"    {'; '.join(facts)}")
        if row["help"]:
            blocks.append(dim(wrapped(row["help"], "    ")))
        if "also_called" in row:
            blocks.append(dim(wrapped(f"also called {', '.join(row['also_called'])}", "    ")))
    return "\n".join(blocks)


@Command(
    "schema",
    Option("--output FILE", "Write to a file instead of standard output."),
    JOB_KIND,
    IMPORT,
)
def schema(arguments: Arguments) -> int:
    """Print the JSON Schema (draft 2020-12) of configuration files.

    With the schema an editor completes keys and values, shows their help, and marks mistakes. The
    schema covers names, types, ranges and vocabularies; `setpoint check` verifies the rest.
    --import adds your own variants and sections.

    `setpoint show SOURCE --schema setpoint.schema.json` adds the line that names the schema in a
    file.

    Examples:
        setpoint schema --output setpoint.schema.json  for the editor
        setpoint schema --import my_package  with variants of your own
        setpoint schema --job inference  of files for `setpoint infer`
    """
    from setpoint.editor_schema.file_schema import json_schema

    prepare(arguments)
    load_installed_plugins()
    sweeps, program = None, arguments.command.program
    if arguments.value("--job") == "inference":
        program = Program(program.name, INFERENCE)
    elif not program.is_own:  # a user's script has no sweeps
        from setpoint.sweep.sweep_file import SweepTable as sweeps
    text = _schema_text(json_schema(program.root, sweeps))
    name = arguments.value("--output")
    if name is not None and os.path.exists(name) and not os.path.isfile(name):
        raise SetpointError(f"--output {name} is not a file")
    print_or_write(f"{text}\n", name)
    return 0


def _schema_text(schema: dict[str, Any]) -> str:
    """JSON with one line per field of the root and per definition, for line-based comparison."""

    def written(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    lines: list[str] = []
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            inside = ",\n".join(f"{written(name)}:{written(part)}" for name, part in value.items())
            lines.append(f"{written(key)}:{{\n{inside}\n}}")
        else:
            lines.append(f"{written(key)}:{written(value)}")
    return "{" + ",\n".join(lines) + "}"
