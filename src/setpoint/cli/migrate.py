"""`setpoint migrate` and `convert`: convert files of older versions and of other systems."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
from collections.abc import Callable, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from setpoint.cli.options import IMPORT, STRICT, Arguments, Command, Option
from setpoint.cli.output import new_file, print_notes, print_or_write
from setpoint.cli.source import CHECKPOINT, kind_of, prepare
from setpoint.config import (
    HEADER,
    Config,
    ConfigError,
    FileDocument,
    SetpointError,
    compose,
    read_record,
    record_files,
    resolve,
    same,
)
from setpoint.config.draft.walk import to_minimal
from setpoint.config.files.read import parse_bytes, read_file
from setpoint.config.files.write import write_toml
from setpoint.config.migrations import Tree, guessed, migrate, oldest_schema, schema_of
from setpoint.config.record.record import recorded_differences
from setpoint.config.words.errors import wrapped_list
from setpoint.files.atomic import write_text
from setpoint.interop.dialect import DIALECTS, read_foreign, recognize, split_dialect
from setpoint.track.run_directory import RunDirectory
from setpoint.train.config import Job

Keys: TypeAlias = tuple[str | int, ...]
Step: TypeAlias = tuple[str, Keys, Any]
"""One step of a migration; see `Tree.steps`."""


class Change(NamedTuple):
    """One file with its new text."""

    path: Path
    before: str
    after: str
    is_record: bool = False


@Command(
    "migrate FILE...",
    Option("--write", "Rewrite in place; a run directory keeps its old files next to them."),
    Option("--from N", "Schema of files that do not name theirs."),
    IMPORT,
)
def run(arguments: Arguments) -> int:
    """Bring configuration files and records of runs up to date.

    Renamed, moved and retired fields, and values with a new notation, are updated. FILE may be a
    run directory. By default the changes are printed and nothing is written. This command is
    optional: files and records that name their schema are migrated in memory when they are read.

    Examples:
        setpoint migrate exp.toml  print the changes
        setpoint migrate --write exp.toml base.yaml  write them, keeping comments
        setpoint migrate --write runs/tiny-3fa94c21  the record of a run, with a backup
    """
    prepare(arguments)
    root = arguments.command.program.root
    write, start = arguments.has("--write"), arguments.integer("--from")
    if start is not None and start > root.__setpoint__.schema:
        raise SetpointError(f"--from must be at most {root.__setpoint__.schema}, got {start}")
    # Read and compute all before writing the first.
    notes: list[str] = []
    plans: list[tuple[str, list[Change]]] = []
    for name in arguments.positional:
        is_folder = os.path.isdir(name)
        changes = _record(root, name, notes) if is_folder else _file(root, name, start, notes)
        plans.append((name, changes))
    print_notes(notes)
    for name, changes in plans:
        if not changes:
            print(f"{name}: nothing to change; it has schema {root.__setpoint__.schema}")
        elif write:
            if changes[0].is_record:  # the run must not be in progress
                with RunDirectory.create(name) as directory:
                    texts = {change.path.name: change.after for change in changes}
                    directory.write_record(texts, root.__setpoint__.schema)
            else:
                write_text(changes[0].path, changes[0].after)
            print(f"{name}: now has schema {root.__setpoint__.schema}")
        else:
            for change in changes:
                shown = str(change.path) if change.is_record else os.path.relpath(change.path)
                before, after = change.before.splitlines(), change.after.splitlines()
                after_name = f"{shown} (migrated)"
                print("\n".join(unified_diff(before, after, shown, after_name, lineterm="")))
    return 0


def _file(root: type[Config], name: str, start: int | None, notes: list[str]) -> list[Change]:
    """The change to one configuration file."""
    document = read_file(name)
    data = {key: value for key, value in document.data.items() if key != HEADER}
    declared = schema_of(root, document.data, name)
    if declared is not None and start not in (None, declared):
        raise SetpointError(f"{name} declares schema {declared}; leave --from {start} out")
    schema = declared or start or oldest_schema(root, data)
    if schema is None or schema == root.__setpoint__.schema:
        return []
    tree = migrate(root, data, schema, name=name)
    if oldest_schema(root, tree.data) is not None:
        raise SetpointError(f"{name}: old keys would remain, so nothing is written")
    notes += [f"{name} (schema {schema}): {note}" for note in tree.notes]
    text = rewrite_document(document, tree, root.__setpoint__.schema)
    path = Path(os.path.realpath(name))
    mark = "\ufeff" if path.read_bytes().startswith(b"\xef\xbb\xbf") else ""
    return [Change(path, mark + document.text, mark + text)]


def _record(root: type[Config], folder: str, notes: list[str]) -> list[Change]:
    """The changes to the three files of a record."""
    if kind_of(folder) == CHECKPOINT:
        raise SetpointError(
            f"{folder} is a checkpoint: its record is covered by its checksums, so it stays as it "
            f"was written, and is brought up to date each time it is read"
        )
    draft, header = read_record(root, folder)
    schema = header["schema"]
    if schema == root.__setpoint__.schema:
        return []
    notes += header["notes"]
    config = resolve(draft)
    different = [item.path for item in recorded_differences(folder, config)]
    if different:
        raise SetpointError(
            f"{folder}: what it recorded is not what today's Setpoint makes of it "
            f"({', '.join(different[:5])}), so the record stays as it is; "
            f"{root.__setpoint__.command(f'diff {folder} ...')} still reads it"
        )
    changes: list[Change] = []
    for name, text in record_files(config).items():
        path = Path(folder, name)
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        changes.append(Change(path, before, text, is_record=True))
    return changes


def rewrite_document(document: FileDocument, tree: Tree, schema: int) -> str:
    """Apply a migration to a text, preserving its layout as far as possible.

    Arguments:
        tree: data of the text, without the header, after the migration.
        schema: the schema for the header, which is added if it is missing.
    """
    before: Any = guessed(document.data.get(HEADER))
    header: dict[str, Any] = {**(before if isinstance(before, dict) else {}), "schema": schema}
    target = {HEADER: header, **tree.data}
    breaks = document.text.count("\r\n")
    if breaks and breaks != document.text.count("\n"):
        raise SetpointError(_refusal(document, "its lines end in CRLF and in LF"))
    before_text = document.text.replace("\r\n", "\n")
    tied = document.format == "yaml" and re.search(r"(?:^|[\s\[{,])\*[^\s*]", before_text)
    shared = "an alias (*) repeats a part that would change" if tied else ""
    try:
        if document.format == "toml":
            text = rewrite_toml(before_text, tree.steps, header)
        elif document.format == "yaml":
            text = rewrite_yaml(before_text, tree.steps, header)
        else:
            assert document.format == "json"
            indent = re.search(r"^([ \t]+)\S", before_text, re.MULTILINE)
            text = json.dumps(target, indent=indent and indent.group(1), ensure_ascii=False)
            text += "\n" * before_text.endswith("\n")
        data = parse_bytes(text.encode(), document.format, document.name).data
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        reason = shared or f"{type(error).__name__}: {error}"
        raise SetpointError(_refusal(document, reason)) from error
    if not same(guessed(data), guessed(target)):
        reason = shared or "the new text would not read as the new values"
        raise SetpointError(_refusal(document, reason))
    return text.replace("\n", "\r\n") if breaks else text


def _refusal(document: FileDocument, reason: str) -> str:
    return (
        f"{document.name} cannot be rewritten with its layout ({reason}); nothing was written. "
        f"Change it by hand; the file is read as it is as long as it names its schema"
    )


def _at(document: Any, path: Keys) -> Any:
    for part in path:
        document = document[part]
    return document


def rewrite_toml(text: str, steps: Sequence[Step], header: dict[str, Any]) -> str:
    """Change keys and values of a TOML text and its table `setpoint`; keep comments and order."""
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
            _move_in_toml(kit, document, first, second)
        elif kind == "put":
            _put_in_toml(kit, document, first, second)
        elif kind == "remove":
            del _at(document, first[:-1])[first[-1]]
        text = kit.dumps(document)
    document = kit.parse(text)
    if HEADER in document:
        for key, value in header.items():
            document[HEADER][key] = value
        return kit.dumps(document)
    # At the top, but below comments about the file: `#:schema` has to be first.
    lines = text.splitlines(keepends=True)
    top = next((n for n, line in enumerate(lines) if not line.startswith("#:")), len(lines))
    return "".join([*lines[:top], f"{HEADER} = {{schema = {header['schema']}}}\n", *lines[top:]])


def _move_in_toml(kit: Any, document: Any, old: Keys, new: Keys) -> None:
    section = _at(document, old[:-1])
    if old[:-1] == new[:-1] and _rename_in_toml(section, str(old[-1]), str(new[-1])):
        return
    item = section[old[-1]]
    del section[old[-1]]
    # A plain value keeps its trailing comment; a table would bring its title, too.
    _put_in_toml(kit, document, new, item.unwrap() if hasattr(item, "append") else item)


def _rename_in_toml(section: Any, old: str, new: str) -> bool:
    """Rename a key in place; False if it is spread over the file."""
    container = section if hasattr(section, "body") else getattr(section, "value", None)
    body = getattr(container, "body", None)
    if body is None:
        return False
    indices = [index for index, (key, _) in enumerate(body) if key is not None and key.key == old]
    if not indices or any(body[index][0].is_dotted() for index in indices):
        return False
    from tomlkit.items import SingleKey

    for index in indices:
        _, item = body[index]
        body[index] = (SingleKey(new, sep=" = "), item)
        _forget_title(item)
    return True


def _forget_title(item: Any) -> None:
    """Regenerate the headers `[a.b]` of a table and of those inside it."""
    if hasattr(item, "display_name"):
        item.display_name = None
    for inner in getattr(item, "body", None) or ():  # a list of tables
        _forget_title(inner)
    container = getattr(item, "value", None)
    for _, inner in getattr(container, "body", None) or ():
        _forget_title(inner)


def _put_in_toml(kit: Any, document: Any, path: Keys, value: Any) -> None:
    def table(above: Any, values: dict[str, str]) -> Any:
        inline = isinstance(above, kit.items.InlineTable)
        return values or (kit.inline_table() if inline else kit.table())

    _parent(document, path, table)[path[-1]] = "null" if value is None else value


def _parent(document: Any, path: Keys, table: Callable[[Any, dict[str, str]], Any]) -> Any:
    """The section or list that contains a value; `table` makes one if missing or given by type."""
    node = document
    for part in path[:-1]:
        if not isinstance(part, int) and part not in node:
            node[part] = table(node, {})
        elif isinstance(node[part], str):
            node[part] = table(node, {"type": str(node[part])})
        node = node[part]
    return node


def rewrite_yaml(text: str, steps: Sequence[Step], header: dict[str, Any]) -> str:
    """Change keys and values of a YAML text and its header, keeping comments, quotes and order."""
    from ruamel.yaml import YAML

    kit: Any = YAML()
    kit.preserve_quotes = True
    kit.width = 4096
    kit.version = None
    kit.indent(**_indents(text))
    document: Any = kit.load(text)
    for kind, first, second in steps:
        if kind == "move":
            _move_in_yaml(document, first, second)
        elif kind == "put":
            _section_in_yaml(document, first)[first[-1]] = second
        elif kind == "remove":
            _remove_in_yaml(_at(document, first[:-1]), first[-1])
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


def _move_in_yaml(document: Any, old: Keys, new: Keys) -> None:
    section = _at(document, old[:-1])
    value = section[old[-1]]
    comments = section.ca.items.pop(old[-1], None)
    place = list(section).index(old[-1])
    del section[old[-1]]
    target = _section_in_yaml(document, new)
    target.insert(place if target is section else len(target), new[-1], value)
    if comments is not None:
        target.ca.items[new[-1]] = comments


def _remove_in_yaml(section: Any, key: str | int) -> None:
    """Remove a key; comment lines below it belong to the next key, and are kept."""
    keys: list[Any] = list(section) if hasattr(section, "keys") else []
    tokens = section.ca.items.pop(key, None) or ()
    below = "".join(token.value.partition("\n")[2] for token in tokens if hasattr(token, "value"))
    after = keys[keys.index(key) + 1 :] if keys else []
    del section[key]
    if after and below.strip():
        lines = [line.strip().removeprefix("#").removeprefix(" ") for line in below.splitlines()]
        section.yaml_set_comment_before_after_key(after[0], before="\n".join(lines))


def _section_in_yaml(document: Any, path: Keys) -> Any:
    from ruamel.yaml.comments import CommentedMap

    return _parent(document, path, lambda _, values: CommentedMap(values))


def _indents(text: str) -> dict[str, int]:
    """Indentation of the file, from the first indented line of each kind."""
    lines = [line for line in text.splitlines() if line.strip() and line.strip()[0] != "#"]
    plain = [line for line in lines if not line.lstrip().startswith("-")]
    steps = [len(line) - len(line.lstrip()) for line in plain]
    mapping = next((step for step in steps if step), 2)
    lists = [line for line in lines if line.lstrip().startswith("- ")]
    offset = min((len(line) - len(line.lstrip()) for line in lists), default=mapping)
    return {"mapping": mapping, "sequence": offset + 2, "offset": offset}


@Command(
    "convert DIALECT:FILE",
    Option("--output FILE", "Write to a file instead of standard output."),
    STRICT,
    about=wrapped_list("DIALECT is one of ", [*DIALECTS]),
)
def convert(arguments: Arguments) -> int:
    """Write a configuration file of another system as a file of Setpoint.

    The file contains the values that differ from Setpoint's defaults, each with its origin in the
    other file or in the defaults of the other system. Keys without an exact equivalent are reported
    as refused, without effect in the other system, different, or requiring a decision. Other
    commands accept DIALECT:FILE as a SOURCE. Words after -- are overrides in the syntax of the
    other system.

    Examples:
        setpoint convert kempnerforge:7b.toml --output 7b.toml  a file of KempnerForge
        setpoint convert xorl:lora.yaml --strict  only if all of it is converted exactly
        setpoint convert xorl:lora.yaml -- --train.lr 2e-4  with an override in xorl's spelling
    """
    source, output = arguments.positional[0], new_file(arguments)
    parts = split_dialect(source)
    if parts is None and os.path.isfile(source) and (name := recognize(source)):
        parts = name, source
    if parts is None:
        raise SetpointError(
            f"{source} does not name a file from another system: give it as DIALECT:FILE, with "
            f"DIALECT one of {', '.join(DIALECTS)}"
        )
    if output is not None and not output.endswith(".toml"):
        raise SetpointError(f"--output {output} must end in .toml, which is what is written")
    document = read_foreign(*parts, arguments.foreign)
    root: type[Config] = Job
    if "weights" in document.data:
        from setpoint.infer.config import Inference

        root = Inference
    composition = compose(root, None, files=[document])
    if composition.problems:
        raise ConfigError(composition.problems)
    print_notes([str(report) for report in document.reports])
    if document.reports and arguments.has("--strict"):
        raise SetpointError(f"{parts[1]} is not converted exactly, see above (--strict)")
    words = shlex.join(["--", *arguments.foreign] if arguments.foreign else [])
    text = f"# setpoint convert {' '.join([':'.join(parts), words]).strip()}\n"
    text += write_toml(to_minimal(composition.draft), document.places)
    print_or_write(text, output)
    return 0
