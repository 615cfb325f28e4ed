"""`setpoint show` and `why`: the resolved configuration, and the origin of each value."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

from setpoint.cli.options import RANKED, SOURCE_HELP, Arguments, Command, Option, Program
from setpoint.cli.output import bold, dim, emit, print_notes, wrapped
from setpoint.cli.source import open_source, run_directory_given
from setpoint.config import (
    Config,
    Free,
    SetpointError,
    all_fields,
    did_you_mean,
    leaves,
    plain,
    to_plain,
)
from setpoint.config.draft.hints import location_hint
from setpoint.config.draft.walk import Leaf, dropped_values, entries_of, to_minimal
from setpoint.config.files.document import names_file
from setpoint.config.layers.list_edits import item_index
from setpoint.config.layers.presets import presets
from setpoint.config.words.names import within
from setpoint.config.words.text import in_full

FORMATS = ("toml", "yaml", "json", "python")
SCHEMA_LINES = {"toml": "#:schema {}\n", "yaml": "# yaml-language-server: $schema={}\n"}
"""First lines of files for editors: Taplo reads that of TOML, YAML's language server the other."""


@Command(
    "show",
    "SOURCE [PATH] [OVERRIDES]",
    "Print every value of a configuration with all layers merged and everything derived, in a\n"
    "form that can be saved and used as a SOURCE again. Python is what differs from the defaults,\n"
    "as a function for SOURCE module:function. Fields that are null by default and that nothing\n"
    "has set are left out, except in JSON and with --all. With a PATH only that field or section\n"
    "is printed, in its place in the file.\n" + SOURCE_HELP,
    [
        Option("--origins", "Print the origin of each value beside it."),
        Option("--minimal", "Print only what differs from the defaults.", excludes=("--all",)),
        Option("--all", "Print fields that are null by default, too."),
        Option(
            "--format",
            "toml (the default), yaml, json, or python (a preset function).",
            "FORMAT",
            choices=FORMATS,
            excludes=("--json",),
        ),
        Option("--schema", "Begin with the line that points editors to the JSON Schema.", "PATH"),
        *RANKED,
    ],
    [
        ("setpoint show tiny", "everything, as TOML"),
        ("setpoint show tiny model", "one section, or one field"),
        ("setpoint show tiny --origins", "with the origin of each value"),
        ("setpoint show tiny --minimal > exp.toml", "a file to start from"),
        ("setpoint show exp.toml --format python > exp.py", "the same as Python"),
        ("setpoint show tiny --schema setpoint.schema.json", "for an editor; see `schema`"),
    ],
    positional=(1, 2),
)
def show(arguments: Arguments) -> int:
    """Print the configuration in the chosen format."""
    chosen = "json" if arguments.has("--json") else arguments.value("--format") or "toml"
    path, source = _optional_path(arguments)
    schema = arguments.value("--schema")
    if chosen == "python":
        ignored = [name for name in ("--origins", "--all", "--schema") if arguments.has(name)]
        for name in [*ignored, *([] if path is None else ["PATH"])]:
            raise SetpointError(f"{name} has no effect with --format python. Leave it out")
    if schema is not None and not (schema and schema.isprintable()):
        raise SetpointError(f"--schema needs a path or an address on one line, got {schema!r}")
    if schema is not None and chosen == "json" and arguments.has("--origins"):
        raise SetpointError(
            "--schema and --origins contradict each other in JSON: a file with origins is no "
            "configuration file"
        )
    config = open_source(source, arguments).resolve()
    if chosen == "python":
        from setpoint.config.record.python_source import to_python

        text = to_python(config)
    else:
        path = None if path is None else leaf_path(config, path)
        data = _values(config, chosen, path, arguments)
        text = _written(config, chosen, path, data, schema, arguments.has("--origins"))
    if path is None and chosen in SCHEMA_LINES:
        text = _progress_line(source) + text
    if schema is not None and chosen in SCHEMA_LINES:
        text = SCHEMA_LINES[chosen].format(schema) + text
    print(text, end="")
    print_notes([f"dropped: {line}" for line in dropped_values(config)])
    return 0


def _values(config: Config, chosen: str, path: str | None, arguments: Arguments) -> dict[str, Any]:
    """The values to print, in the tree that a file has."""
    full = to_plain(config)
    data = to_minimal(config) if arguments.has("--minimal") else full
    if chosen != "json" and not (arguments.has("--all") or arguments.has("--minimal")):
        data = _without_nulls(data, to_minimal(config), config)
    if path is None:
        return data
    selected = _branch(full, path.split("."))
    if selected is None:
        raise SetpointError(not_there(arguments.command.program, config, path))
    shown = _branch(data, path.split("."))
    if shown is None:  # null, or the default
        shown = {} if arguments.has("--minimal") else selected
    return shown


def _written(
    config: Config,
    chosen: str,
    path: str | None,
    data: dict[str, Any],
    schema: str | None,
    with_origins: bool,
) -> str:
    """The values as a file in TOML, YAML or JSON, with origins as comments or, in JSON, values."""
    every = list(leaves(config)) if with_origins else []
    entries = [entry for leaf in every for entry in entries_of(config, leaf) or [leaf]]
    if chosen == "json":
        from setpoint.config.files.write import write_json as write_json

        if with_origins:
            origins = {
                leaf.key: leaf.describe_origin()
                for leaf in (*every, *entries)
                if path is None or within(leaf.key, path) or within(path, leaf.key)
            }
            data = {"config": data, "origins": origins}
        return write_json(data if schema is None else {"$schema": schema, **data})
    comments = {leaf.path: leaf.describe_origin() for leaf in entries} if with_origins else None
    if chosen == "yaml":
        from setpoint.config.files.write import write_yaml as write_yaml

        return write_yaml(data, comments)
    from setpoint.config.files.write import write_toml as write_toml

    return write_toml(data, comments)


def _progress_line(source: str | None) -> str:
    """A comment with the status of a run; empty for other sources."""
    folder = run_directory_given(source)
    if folder is None:
        return ""
    from setpoint.train.run_status import data_position, run_status

    position = data_position(folder)
    line = f"# this run {run_status(folder)}" + (f"; data: {position}" if position else "")
    return " ".join(line.split()) + "\n"


def _optional_path(arguments: Arguments) -> tuple[str | None, str | None]:
    """PATH and SOURCE, one of which may be missing; a script needs no SOURCE."""
    words, program = arguments.positional, arguments.command.program
    if len(words) == 2:
        return path_and_source(words, program)
    word = arguments.source
    is_path = (
        word is not None
        and program.is_own
        and word.partition(".")[0] in program.root.__setpoint__.fields
        and not os.path.exists(word)
    )
    return (word, None) if is_path else (None, word)


def _branch(value: Any, path: list[str]) -> Any:
    """The part of nested values at a path, in its place; of lists that item alone.

    Returns:
        the values above it with this part alone; None where there is none.
    """
    if not path:
        return value
    key, inner = path[0], None
    if isinstance(value, dict):
        items = cast(dict[str, Any], value)
        if key in items:
            inner = _branch(items[key], path[1:])
            return {key: inner} if inner is not None or len(path) == 1 else None
    elif isinstance(value, list) and key.isdecimal() and int(key) < len(cast(list[Any], value)):
        inner = _branch(cast(list[Any], value)[int(key)], path[1:])
    return None if inner is None else [inner]


def _without_nulls(data: dict[str, Any], minimal: object, section: object) -> dict[str, Any]:
    """Values without those that are null and need not be written for it.

    Arguments:
        section: the section of these values.
    """
    differs = cast(dict[str, Any], minimal) if isinstance(minimal, dict) else {}
    # A variant's `type` is no field, and to ask for it would look for the nearest name.
    fields = type(section).__setpoint__.fields if isinstance(section, Config) else {}
    kept: dict[str, Any] = {}
    for key, value in data.items():
        if value is None and key not in differs:
            continue
        inner = getattr(section, key, None) if key in fields else None
        if isinstance(value, dict):
            value = _without_nulls(cast(dict[str, Any], value), differs.get(key), inner)
        elif isinstance(value, list) and isinstance(inner, tuple):
            pairs = zip(cast(list[Any], value), cast(tuple[Any, ...], inner), strict=True)
            value = [
                _without_nulls(item, to_minimal(one), one) if isinstance(one, Config) else item
                for item, one in pairs
            ]
        kept[key] = value
    return kept


@Command(
    "why",
    "PATH [SOURCE] [OVERRIDES]",
    "Print every layer that touched a value, the first at the top and the winner, marked with >,\n"
    "last; then the help of the field, and its role. PATH is a field, a section, or an item of a\n"
    "list such as data.sources.0; without a SOURCE the defaults are used. A derived value names\n"
    "the fields that it was derived from. Values that a later layer left no place for are named\n"
    "as dropped.\n" + SOURCE_HELP,
    RANKED,
    [
        ("setpoint why optimizer.lr tiny", "the learning rate of tiny"),
        ("setpoint why batch tiny --batch.accumulation 2", "all of a section, with an override"),
        ("setpoint why model.ffn_dim runs/tiny-3fa94c21", "a derived value of a run"),
    ],
    positional=(1, 2),
)
def why(arguments: Arguments) -> int:
    """Print the layers of one field, or of every field of a section."""
    program = arguments.command.program
    path, source = path_and_source(arguments.positional, program)
    config = open_source(source, arguments).resolve()
    name = leaf_path(config, path)
    every = list(leaves(config))
    matches = [leaf for leaf in every if within(leaf.key, name)]
    if not matches:  # an entry of a mapping, whose key is as it was written
        entries = (entry for leaf in every for entry in entries_of(config, leaf))
        matches = [entry for entry in entries if entry.key == name]
    dropped = list(dropped_values(config, name))
    if not matches:
        lines = [f"  dropped: {line}" for line in dropped]
        raise SetpointError("\n".join([not_there(program, config, path), *lines]))
    facts = [_facts(config, leaf) for leaf in matches]
    texts = [_explain(config, leaf) for leaf in matches]
    emit(
        arguments,
        [*facts, *({"path": name, "dropped": line} for line in dropped)],
        "\n\n".join([*texts, *(f"dropped: {line}" for line in dropped)]),
    )
    return 0


def not_there(program: Program, config: Config, path: str) -> str:
    """The message about a path without a value."""
    name = leaf_path(config, path)
    meant = _meant(program, name, list(leaves(config)))
    return f"this configuration has no value {path!r}. {meant}"


def leaf_path(config: Config, typed: str) -> str:
    """A typed path as `leaves` has it: fields with underscores, items of lists by index."""
    node: Any = config
    parts = typed.split(".")
    for depth, part in enumerate(parts):
        plain = part.replace("-", "_")
        if isinstance(node, Config):
            parts[depth] = plain
            node = getattr(node, plain) if plain in type(node).__setpoint__.fields else None
        elif isinstance(node, list | tuple):
            try:
                index = item_index(node, part, ".".join(parts[:depth]))
            except SetpointError:
                break
            parts[depth], node = str(index), node[index]
        elif isinstance(node, Mapping | Free):  # whose keys are as they were written
            parts[depth] = part if part in node or plain not in node else plain
            node = dict(node.items()).get(parts[depth])
    return ".".join(parts)


def path_and_source(positional: list[str], program: Program) -> tuple[str, str | None]:
    """Tell path and source apart, which may stand in either order.

    Arguments:
        positional: one or two words; one is the path.

    Raises:
        SetpointError: if the only word is a source.
    """
    if not program.is_own:
        import setpoint.presets  # noqa: F401 - registers the presets by name

    def _is_field(word: str) -> bool:
        return word.partition(".")[0].replace("-", "_") in program.root.__setpoint__.fields

    first, second = positional[0], positional[1] if len(positional) > 1 else None
    if second is None:
        if _is_source(first) and not _is_field(first):
            example = "PATH" if program.is_own else "optimizer.lr"
            raise SetpointError(
                f"which value of {first}? For instance: {program.name} why {example} {first}"
            )
        return first, None
    # A folder may be called `data`, and a file `model.toml`: what is a field stays one, unless
    # the other word can be nothing else.
    if _is_field(first):
        swap = _is_field(second) and _is_source(first) and not _is_source(second)
    else:
        swap = _is_field(second) or (_is_source(first) and not _is_source(second))
    return (second, first) if swap else (first, second)


def _is_source(word: str) -> bool:
    named = word.replace("_", "-") in presets or ":" in word or names_file(word)
    return named or os.path.exists(word)


def _meant(program: Program, name: str, every: list[Leaf]) -> str:
    """The reason why a path has no value, or the path that may be meant."""
    for leaf in every:
        if name.startswith(f"{leaf.key}."):
            if isinstance(leaf.value, dict) and leaf.value:
                keys = [f"{leaf.key}.{key}" for key in leaf.value]
                return f"{leaf.key} has {', '.join(keys)}.{did_you_mean(name, keys, ' ')}"
            where = f"{in_full(leaf.value)} ({leaf.describe_origin()})"
            return f"{leaf.key} is {where}, with nothing inside."
    section = name.rpartition(".")[0]
    chosen = next((leaf for leaf in every if leaf.key == f"{section}.type"), None)
    if chosen is not None and any(path == name for path, _ in all_fields(program.root)):
        where = f"{in_full(chosen.value)} ({chosen.describe_origin()})"
        return f"It belongs to another variant; {chosen.key} is {where}."
    place = location_hint(program.root, name)
    hint = place or did_you_mean(name, [leaf.key for leaf in every])
    return hint or f"`{program.name} list fields` shows all there are."


def _layers(leaf: Leaf) -> list[tuple[object, str]]:
    """Each layer's value and origin, the winner last."""
    layers: list[tuple[object, str]] = []
    for origin, value in leaf.chain:
        if leaf.path[-1] == "type" and not isinstance(value, str):
            value = _tag(value, leaf.path[-2])
            if value is None:
                continue
        layers.append((value, origin.describe(leaf.path)))
    return layers or [(leaf.value, leaf.describe_origin())]


def _tag(value: object, key: object) -> str | None:
    """The variant that a layer chose, of a section or of a list with it."""
    if isinstance(value, list | tuple) and isinstance(key, int):
        value = value[key] if key < len(value) else None
    elif isinstance(value, dict):
        value = value.get(key)
    return type(value).__setpoint__.tag if isinstance(value, Config) else None


def _facts(config: Config, leaf: Leaf) -> dict[str, object]:
    return {
        "path": leaf.key,
        "value": plain(leaf.value),
        "role": leaf.role.name,
        "help": _help(config, leaf),
        "layers": [{"value": plain(value), "origin": origin} for value, origin in _layers(leaf)],
    }


def _explain(config: Config, leaf: Leaf) -> str:
    lines = [bold(f"{leaf.key} = {in_full(leaf.value)}")]
    layers = [(in_full(value), origin) for value, origin in _layers(leaf)]
    # One long value shall not push the origins of the others off the screen.
    width = max((len(value) for value, _ in layers if len(value) <= 40), default=0)
    for index, (value, origin) in enumerate(layers):
        mark = ">" if index == len(layers) - 1 else " "
        lines.append(f"  {mark} {value:<{width}}  {origin}")
    meaning = _help(config, leaf)
    if meaning:
        lines.append(dim(wrapped(meaning, "    ")))
    lines.append(dim(f"    role {leaf.role.name}: {leaf.role.meaning}"))
    return "\n".join(lines)


def _help(config: Config, leaf: Leaf) -> str:
    from setpoint.editor_schema.help import field_help

    if leaf.path[-1] == "type":
        return "The variant of this section."
    node: object = config
    for part in leaf.path[:-1]:
        if isinstance(node, Config):
            node = getattr(node, str(part))
        elif isinstance(node, list | tuple) and isinstance(part, int):
            node = node[part]
        else:
            node = node.get(part) if isinstance(node, dict) else None
    above = leaf.path[:-1]
    if isinstance(node, dict) and above:  # an entry of a mapping
        return _help(config, Leaf(above, None, leaf.role, []))
    if not isinstance(node, Config):
        return ""  # in the user area, where keys are free
    info = type(node).__setpoint__.fields[str(leaf.path[-1])]
    return field_help(info.owner, info.name)
