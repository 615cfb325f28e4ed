"""`setpoint show`, `why`, `diff` and `fingerprint`: values, origins, differences, the hash."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

from setpoint.cli.options import (
    RANKED,
    Arguments,
    Command,
    Option,
    Program,
    refuse_misspelt_options,
)
from setpoint.cli.output import bold, dim, emit, print_notes, table, wrapped
from setpoint.cli.source import open_source, open_table, run_directory_given
from setpoint.config import (
    IDENTITY,
    Config,
    Free,
    SetpointError,
    all_fields,
    did_you_mean,
    differences,
    fingerprint,
    leaves,
    nearest,
    plain,
    to_plain,
)
from setpoint.config.draft.hints import location_hint
from setpoint.config.draft.walk import Leaf, dropped_values, entries_of, to_minimal
from setpoint.config.files.file_document import names_file
from setpoint.config.files.write import WRITERS
from setpoint.config.layers.list_edits import item_index
from setpoint.config.layers.presets import presets
from setpoint.config.record.record import (
    ROLES,
    Difference,
    Entry,
    Table,
    canonical,
    compare,
    identity_leaves,
)
from setpoint.config.words.names import within
from setpoint.config.words.text import in_full

FORMATS = ("toml", "yaml", "json", "python")
SCHEMA_LINES = {"toml": "#:schema {}\n", "yaml": "# yaml-language-server: $schema={}\n"}
"""First lines of files for editors: Taplo reads that of TOML, YAML's language server the other."""


@Command(
    "show SOURCE [PATH] [OVERRIDES]",
    Option("--origins", "Print the origin of each value next to it.", excludes="--format=python"),
    Option("--minimal", "Print only what differs from the defaults.", excludes="--all"),
    Option("--all", "Also print fields that are null by default.", excludes="--format=python"),
    Option(
        f"--format {'|'.join(FORMATS)}", "Default: toml; python: a function.", excludes="--json"
    ),
    Option(
        "--schema PATH",
        "Begin with a comment that names the JSON Schema for editors.",
        excludes="--format=python",
    ),
    *RANKED,
)
def show(arguments: Arguments) -> int:
    """Print the resolved configuration: every value, with all layers merged and derived values.

    The output is a valid SOURCE. It pins every value, derived ones included; as a starting point
    for your own file or for another machine use --minimal. The format python is a function that
    returns the same configuration, for SOURCE module:function. Unset fields that are null by
    default are omitted, except in JSON and with --all. With a PATH only that field or section is
    printed, with its enclosing tables.

    Examples:
        setpoint show tiny  everything, as TOML
        setpoint show tiny model  one section, or one field
        setpoint show tiny --origins  with the origin of each value
        setpoint show tiny --minimal > exp.toml  a file to start from
        setpoint show exp.toml --format python > exp.py  the same as Python
        setpoint show tiny --schema setpoint.schema.json  for an editor; see `schema`
    """
    chosen = "json" if arguments.has("--json") else arguments.value("--format") or "toml"
    path, source = _optional_path(arguments)
    schema = arguments.value("--schema")
    if chosen == "python" and path is not None:
        raise SetpointError("--format python prints the whole configuration; remove PATH")
    if schema is not None and not (schema and schema.isprintable()):
        raise SetpointError(f"--schema needs a path or an address on one line, got {schema!r}")
    if schema is not None and chosen == "json" and arguments.has("--origins"):
        raise SetpointError(
            "--schema and --origins cannot be combined in JSON: a file with origins is not a "
            "configuration file"
        )
    config = open_source(source, arguments).resolve()
    if chosen == "python":
        from setpoint.config.record.python_source import to_python

        text = to_python(config)
    else:
        path = None if path is None else leaf_path(config, path)[0]
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
    """The values to print, as the tree that a file would contain."""
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
    """The values as a TOML, YAML or JSON file, with origins as comments or, in JSON, as values."""
    every = list(leaves(config)) if with_origins else []
    entries = [entry for leaf in every for entry in entries_of(config, leaf) or [leaf]]
    comments = {leaf.path: leaf.describe_origin() for leaf in entries} if with_origins else None
    if chosen == "json":  # JSON has no comments
        if with_origins:
            origins = {
                leaf.key: leaf.describe_origin()
                for leaf in (*every, *entries)
                if path is None or within(leaf.key, path) or within(path, leaf.key)
            }
            data = {"config": data, "origins": origins}
        data = data if schema is None else {"$schema": schema, **data}
    return WRITERS[chosen](data, comments)


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
    """Split the arguments into PATH and SOURCE, either of which may be missing."""
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
    """The branch of nested values that leads to a path, with one item of each list, or None."""
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
    """The values of a section, without those that are null by default."""
    differs = cast(dict[str, Any], minimal) if isinstance(minimal, dict) else {}
    # A variant's `type` is not a field; looking it up would search for the nearest name.
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


@Command("why PATH [SOURCE] [OVERRIDES]", *RANKED)
def why(arguments: Arguments) -> int:
    """Print every layer that set a value, the first at the top and the winner, marked with >, last.

    The help and role of the field follow. PATH is a field, a section, or a list item such as
    data.sources.0; without a SOURCE the defaults are used. For a derived value the fields that it
    depends on are named. Values that a later layer made ineffective are listed as dropped.

    Examples:
        setpoint why optimizer.lr tiny  the learning rate of tiny
        setpoint why batch tiny --batch.accumulation 2  a whole section, with an override
        setpoint why model.ffn_dim runs/tiny-3fa94c21  a derived value of a run
    """
    program = arguments.command.program
    path, source = path_and_source(arguments.positional, program)
    config = open_source(source, arguments).resolve()
    name, _ = leaf_path(config, path)
    every = list(leaves(config))
    matches = [leaf for leaf in every if within(leaf.key, name)]
    if not matches:  # an entry of a mapping, whose keys are literal
        entries = (entry for leaf in every for entry in entries_of(config, leaf))
        matches = [entry for entry in entries if entry.key == name]
    dropped = list(dropped_values(config, name))
    if not matches:
        lines = [f"  dropped: {line}" for line in dropped]
        raise SetpointError("\n".join([not_there(program, config, path), *lines]))
    emit(
        arguments,
        lambda: [
            *(_facts(config, leaf) for leaf in matches),
            *({"path": name, "dropped": line} for line in dropped),
        ],
        lambda: "\n\n".join(
            [*(_explain(config, leaf) for leaf in matches), *(f"dropped: {d}" for d in dropped)]
        ),
    )
    return 0


def not_there(program: Program, config: Config, path: str) -> str:
    """Message about a path without a value."""
    name, reason = leaf_path(config, path)
    meant = f"{reason}." if reason else _meant(program, name, list(leaves(config)))
    return f"this configuration has no value {path!r}. {meant}"


def leaf_path(config: Config, typed: str) -> tuple[str, str]:
    """Normalize a typed path: fields with underscores, list items by index.

    The second value is the reason why it names no list item, if any.
    """
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
            except SetpointError as error:
                return typed, str(error)
            parts[depth], node = str(index), node[index]
        elif isinstance(node, Mapping | Free):  # its keys are literal
            parts[depth] = part if part in node or plain not in node else plain
            node = dict(node.items()).get(parts[depth])
    return ".".join(parts), ""


def path_and_source(positional: list[str], program: Program) -> tuple[str, str | None]:
    """Distinguish a path and a source given in either order."""
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
    # A folder may be called `data`, and a file `model.toml`: a name of a field is the field, unless
    # the other word can only be one.
    if _is_field(first):
        swap = _is_field(second) and _is_source(first) and not _is_source(second)
    else:
        swap = _is_field(second) or (_is_source(first) and not _is_source(second))
    return (second, first) if swap else (first, second)


def _is_source(word: str) -> bool:
    named = word.replace("_", "-") in presets or ":" in word or names_file(word)
    return named or os.path.exists(word)


def _meant(program: Program, name: str, every: list[Leaf]) -> str:
    """The reason why a path has no value, or the intended path."""
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
    if place := location_hint(program.root, name):
        return place
    keys = [leaf.key for leaf in every]
    inside = [key.removeprefix(f"{section}.") for key in keys if key.startswith(f"{section}.")]
    if inside:  # compare with the names in the same section, regardless of the path's last name
        names = list(dict.fromkeys(key.partition(".")[0] for key in inside))
        close = nearest(name.rpartition(".")[2], names, 1)
        return f"Did you mean {section}.{close[0]}?" if close else f"Valid: {', '.join(names)}"
    return did_you_mean(name, keys) or f"`{program.name} list fields` shows all there are."


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
    """The variant chosen by a layer, for a section or for a list that contains it."""
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
    # A long value must not push the origins of the others off the screen.
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
        return ""  # in the user area, where all keys are allowed
    info = type(node).__setpoint__.fields[str(leaf.path[-1])]
    return field_help(info.owner, info.name)


@Command(
    "diff A B [MORE...] [OVERRIDES]",
    Option("--role identity|budget|runtime", "Compare only fields with these roles.", True),
    Option("--ignore PATH", "Leave a field or section out.", True),
    Option("--origins", "Print origins of three or more sources instead of a table."),
    *RANKED,
)
def diff(arguments: Arguments) -> int:
    """Print the values that differ between sources, each with its origin; three or more as a table.

    Runs, checkpoints and git revisions are compared as recorded, including fields that no longer
    exist. OVERRIDES, modifiers, further files and the environment apply to B alone, which is then
    resolved again; a source that needs overrides, such as a file of another system, must therefore
    be B. With three or more sources overrides are refused and the environment is not read. The exit
    status is 0 if nothing differs, 1 if something does, and 2 if a source cannot be read.

    Examples:
        setpoint diff tiny runs/tiny-3fa94c21  what a run changed
        setpoint diff tiny tiny --optimizer.lr 1e-3  all that an override changes
        setpoint diff HEAD~1:tiny tiny  what the last commit changed in a preset
        setpoint diff runs/a runs/b runs/c --role identity  differences of runs, as a table
        setpoint diff runs/a runs/b runs/c --origins  the same, each value with its origin
    """
    sources = arguments.positional
    many = len(sources) > 2
    if many:
        _refuse_layers(arguments)
    roles = [ROLES[n] for text in arguments.values("--role") for n in text.split(",")] or None
    tables = [
        open_table(source, arguments, overrides=not many and position == 1)
        for position, source in enumerate(sources)
    ]
    ignored = [_known_path(path, tables, arguments) for path in arguments.values("--ignore")]
    rows = compare(tables, roles, ignored)

    def text() -> str:
        if not rows:
            filters = [f"{name} {value}" for name in ("--role", "--ignore")
                       for value in arguments.values(name)]  # fmt: skip
            compared = f"with {' '.join(filters)}" if filters else f"{len(tables[0])} values"
            return f"no differences ({compared}): {' and '.join(dict.fromkeys(sources))}"
        if not many or arguments.has("--origins"):
            return "\n".join(render(rows, sources))
        lines = [["", *_distinct_names(sources)]]
        lines += [[row.path, *(_cell(entry) for entry in row.entries)] for row in rows]
        if len(sources) > len(rows):
            lines = [list(column) for column in zip(*lines, strict=True)]
        return table(lines[1:], lines[0])

    emit(arguments, lambda: [_difference_facts(row, sources) for row in rows], text)
    return 1 if rows else 0


def _refuse_layers(arguments: Arguments) -> None:
    refuse_misspelt_options(arguments)
    given = [name for name in ("--with", "--file", "--world-size") if arguments.has(name)]
    given += [token for token in arguments.overrides if token.startswith("-") or "=" in token]
    if given or arguments.overrides:
        word = (given or arguments.overrides)[0]
        raise SetpointError(
            f"{word} could apply to any of {len(arguments.positional)} sources; overrides are "
            f"accepted with two sources, and then apply to the second"
        )


def _known_path(typed: str, tables: list[Table], arguments: Arguments) -> str:
    """A path to ignore, spelled as in the tables."""
    fields = [name for name, _ in all_fields(arguments.command.program.root)]
    keys = [key for table in tables for key in table]
    for path in (typed, typed.replace("-", "_")):  # keys of mappings are literal
        if path in fields or any(within(key, path) for key in keys):
            return path
    meant = did_you_mean(typed, [*fields, *keys], " ")
    raise SetpointError(f"--ignore {typed}: there is no such field or section.{meant}")


def _difference_facts(row: Difference, sources: list[str]) -> object:
    """A difference as plain data: two sides by name, more than two as a list."""
    if len(sources) == 2:
        return plain(row.to_json())
    sides: list[dict[str, object]] = []
    for source, entry in zip(sources, row.entries, strict=True):
        facts = {} if entry is None else {"value": plain(entry.value), "origin": entry.origin}
        sides.append({"source": source, **facts})
    return {"path": row.path, "role": row.role.name, "sides": sides}


def render(rows: list[Difference], sources: list[str]) -> list[str]:
    """The differences between a few sources as lines of text, with origins."""
    names = _distinct_names(sources)
    width = max(map(len, names))
    lines: list[str] = []
    for row in rows:
        lines.append(bold(row.path) + dim(f"  ({row.role.name})"))
        texts = [_cell(entry) for entry in row.entries]
        # A long value must not push the other's origin off the screen.
        column = max((len(text) for text in texts if len(text) <= 40), default=0)
        for name, text, entry in zip(names, texts, row.entries, strict=True):
            origin = dim(f"  {entry.origin}") if entry is not None and entry.origin else ""
            lines.append(f"  {name:<{width}}  {text:<{column}}{origin}".rstrip())
    return lines


def _distinct_names(sources: list[str]) -> list[str]:
    """The names of the sources, numbered where two are equal."""
    if len(set(sources)) == len(sources):
        return sources
    if len(sources) == 2:
        return [f"A: {sources[0]}", f"B: {sources[1]}"]
    return [f"{place}: {source}" for place, source in enumerate(sources, 1)]


def _cell(entry: Entry | None) -> str:
    return "(absent)" if entry is None else in_full(entry.value)


@Command(
    "fingerprint SOURCE [OTHER_SOURCE] [OVERRIDES]",
    Option("--explain", "Print the hashed values; of two sources, those that differ."),
    *RANKED,
)
def fingerprint_command(arguments: Arguments) -> int:
    """Print the hash (SHA-256) of all identity fields, those that affect training.

    Configurations with the same fingerprint train the same model; runtime fields (device, logging)
    and budget fields (duration) do not affect it. With two sources both hashes are printed, and the
    exit status is 1 if they differ; OVERRIDES, modifiers, further files and the environment apply
    to the second.

    Examples:
        setpoint fingerprint tiny  the preset's fingerprint
        setpoint fingerprint tiny --seed 2  with another seed
        setpoint fingerprint tiny runs/tiny-3fa94c21 --explain  why two fingerprints differ
    """
    names, explains = arguments.positional, arguments.has("--explain")
    configs = [open_source(name, arguments, overrides=False).resolve() for name in names[:-1]]
    configs.append(open_source(names[-1] if names else None, arguments).resolve())
    digests, config = [fingerprint(digest) for digest in configs], configs[-1]
    if len(configs) == 2:
        rows = differences(configs[0], configs[1], [IDENTITY]) if explains else []
        both: dict[str, Any] = {"fingerprints": digests, "equal": digests[0] == digests[1]}
        if explains:
            both["differences"] = [plain(row.to_json()) for row in rows]
        hashes = table(list(zip(names, digests, strict=True)))
        emit(arguments, both, "\n".join([hashes, *render(rows, names)]))
        return int(digests[0] != digests[1])
    every = list(identity_leaves(config)) if explains else []
    origins = {leaf.key: leaf.describe_origin() for leaf in every}

    def facts() -> dict[str, Any]:
        import json

        identity = {"fingerprint": digests[0], "identity": json.loads(canonical(config))}
        return {**identity, "origins": origins} if explains else identity

    texts = (f"  {leaf.key} = {in_full(leaf.value)}" for leaf in every)
    lines = [
        text + dim(f"  {origin}") for text, origin in zip(texts, origins.values(), strict=True)
    ]
    emit(arguments, facts, "\n".join([*digests, *lines]))
    return 0
