"""`setpoint migrate` and `convert`: convert files of older versions and of other systems."""

from __future__ import annotations

import os
import shlex

from setpoint.cli.options import IMPORT, STRICT, Arguments, Command, Option
from setpoint.cli.output import new_file, print_notes, print_or_write
from setpoint.cli.source import CHECKPOINT, kind_of, prepare
from setpoint.config import (
    HEADER,
    Config,
    ConfigError,
    SetpointError,
    compose,
    read_record,
    record_files,
    resolve,
)
from setpoint.config.draft.walk import to_minimal
from setpoint.config.files.read import read_file
from setpoint.config.files.write import write_toml
from setpoint.config.migrations import migrate, oldest_schema, schema_of
from setpoint.config.record.record import recorded_differences
from setpoint.config.words.errors import wrapped_list
from setpoint.config.words.names import dotted
from setpoint.config.words.text import for_file
from setpoint.interop.dialect import DIALECTS, read_foreign, recognize, split_dialect
from setpoint.track.run_directory import RunDirectory
from setpoint.train.config import Job


@Command(
    "migrate FILE...",
    Option("--write", "Rewrite the records of runs; their old files are kept next to them."),
    Option("--from N", "Schema of files that do not name theirs."),
    IMPORT,
)
def run(arguments: Arguments) -> int:
    """Print what configuration files must change for the current schema; update records of runs.

    For each renamed, moved or retired field, and each value with a new notation, the line of a file
    is printed with the change. FILE may be a run directory, whose record --write brings up to date.
    This command is optional: files and records that name their schema are migrated in memory when
    they are read.

    Examples:
        setpoint migrate exp.toml  print the changes to make
        setpoint migrate --write runs/tiny-3fa94c21  the record of a run, with a backup
    """
    prepare(arguments)
    root = arguments.command.program.root
    schema, start = root.__setpoint__.schema, arguments.integer("--from")
    if start is not None and start > schema:
        raise SetpointError(f"--from must be at most {schema}, got {start}")
    files = [name for name in arguments.positional if not os.path.isdir(name)]
    if files and arguments.has("--write"):
        raise SetpointError(
            f"--write updates only the records of runs, and {files[0]} is not a run directory; "
            f"without --write, the changes to make in a file are printed"
        )
    # Read and compute all before writing the first.
    notes: list[str] = []
    changes: list[tuple[str, list[str], dict[str, str]]] = []
    for name in arguments.positional:
        if os.path.isdir(name):
            changes.append((name, *_record(root, name, notes)))
        else:
            changes.append((name, _file(root, name, start, notes), {}))
    print_notes(notes)
    for name, lines, texts in changes:
        if not lines:
            print(f"{name}: nothing to change; it has schema {schema}")
        elif texts and arguments.has("--write"):
            with RunDirectory.create(name) as directory:  # the run must not be in progress
                directory.write_record(texts, schema)
            print(f"{name}: now has schema {schema}")
        else:
            print("\n".join(lines))
    return 0


def _file(root: type[Config], name: str, start: int | None, notes: list[str]) -> list[str]:
    """The changes to make in a configuration file, each with its line."""
    document = read_file(name)
    data = {key: value for key, value in document.data.items() if key != HEADER}
    declared = schema_of(root, document.data, name)
    if declared is not None and start not in (None, declared):
        raise SetpointError(f"{name} declares schema {declared}; leave --from {start} out")
    schema = declared or start or oldest_schema(root, data)
    if schema is None or schema == root.__setpoint__.schema:
        return []
    tree = migrate(root, data, schema, name=name)
    notes += [f"{name} (schema {schema}): {note}" for note in tree.notes]
    lines: list[str] = []
    for number, (kind, path, value) in enumerate(tree.steps):
        changed = "was removed"
        if kind == "move":
            changed = f"was renamed to {dotted(value)}"
        elif kind == "put":
            changed = f"= {for_file(value)}"
        place = document.where(tree.old_path(path, number))
        lines.append(f"{place}: {dotted(path)} {changed}")
    current = root.__setpoint__.schema
    header = f"{HEADER} = {{schema = {current}}}"
    if document.format != "toml":  # in JSON, which is YAML, too
        header = f'"{HEADER}": {{"schema": {current}}}'
    return [*lines, f"{name}: {header}"]


def _record(root: type[Config], folder: str, notes: list[str]) -> tuple[list[str], dict[str, str]]:
    """The changes to the record of a run, as lines and as the texts of its files."""
    if kind_of(folder) == CHECKPOINT:
        raise SetpointError(
            f"{folder} is a checkpoint: its record is covered by its checksums, so it is not "
            f"changed; it is migrated each time it is read"
        )
    draft, header = read_record(root, folder)
    if header["schema"] == root.__setpoint__.schema:
        return [], {}
    notes += header["notes"]
    config = resolve(draft)
    different = [item.path for item in recorded_differences(folder, config)]
    if different:
        raise SetpointError(
            f"{folder}: the current version of Setpoint resolves its record to other values "
            f"({', '.join(different[:5])}), so the record was not changed; "
            f"{root.__setpoint__.command(f'diff {folder} ...')} can still read it"
        )
    line = f"{folder}: has schema {header['schema']}; --write updates it"
    return [line], record_files(config)


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
        raise SetpointError(f"--output {output} must end in .toml: the output is TOML")
    document = read_foreign(*parts, arguments.foreign)
    root: type[Config] = Job
    if "weights" in document.data:
        from setpoint.infer.config import Inference

        root = Inference
    composition = compose(root, None, files=[document])
    if composition.problems:
        raise ConfigError(composition.problems)
    print_notes([str(report) for report in document.reports])
    if arguments.has("--strict") and not all(report.is_exact for report in document.reports):
        raise SetpointError(f"{parts[1]} cannot be converted exactly, see above (--strict)")
    words = shlex.join(["--", *arguments.foreign] if arguments.foreign else [])
    text = f"# setpoint convert {' '.join([':'.join(parts), words]).strip()}\n"
    text += write_toml(to_minimal(composition.draft), document.places)
    print_or_write(text, output)
    return 0
