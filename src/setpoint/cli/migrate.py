"""`setpoint migrate`: files and records of older schemas as today's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from setpoint.cli.options import IMPORT, Arguments, Command, Option
from setpoint.cli.output import print_notes
from setpoint.cli.rewrite import rewrite_document
from setpoint.cli.source import CHECKPOINT, kind_of, prepare
from setpoint.config import (
    HEADER,
    Config,
    SetpointError,
    migrate,
    oldest_schema,
    read_file,
    read_record,
    record_files,
    recorded_differences,
    resolve,
    schema_of,
)
from setpoint.files.atomic import write_text
from setpoint.track.run_directory import RunDirectory

COMMAND = Command(
    "migrate",
    "FILE_OR_RUN_DIRECTORY...",
    "Bring configuration files and records of runs that an older Setpoint wrote up to date:\n"
    "renamed, moved and retired fields, and values that are written in another\n"
    "way. By default the changes are printed and nothing is written. Old files and records are\n"
    "read without this: in memory, if they say which schema they are of.",
    [
        Option("--write", "Rewrite in place; the old files of a run directory are kept beside."),
        Option("--from", "The schema of files that do not say theirs.", "N"),
        IMPORT,
    ],
    [
        ("setpoint migrate exp.toml", "what would change"),
        ("setpoint migrate --write exp.toml base.yaml", "change it, keeping comments"),
        ("setpoint migrate --write runs/tiny-3fa94c21", "the record of a run, with a backup"),
    ],
    positional=(1, 1000),
)


class Change(NamedTuple):
    """One file with its new text."""

    path: Path
    before: str
    after: str
    is_record: bool = False


@COMMAND
def run(arguments: Arguments) -> int:
    """Print what would change, or change it."""
    prepare(arguments)
    if arguments.overrides:
        raise SetpointError(
            f"unexpected argument {arguments.overrides[0]!r}: migrate takes files and run "
            f"directories, and sets no fields"
        )
    root = arguments.command.program.root
    write, start = arguments.has("--write"), arguments.integer("--from")
    if start is not None and start > root.__setpoint__.schema:
        raise SetpointError(f"--from must be at most {root.__setpoint__.schema}, got {start}")
    # All are read and worked out before the first is written.
    notes: list[str] = []
    plans: list[tuple[str, list[Change]]] = []
    for name in arguments.positional:
        is_folder = os.path.isdir(name)
        found = _record(root, name, notes) if is_folder else _file(root, name, start, notes)
        plans.append((name, found))
    print_notes(notes)
    for name, changes in plans:
        if not changes:
            print(f"{name}: nothing to change; it is of schema {root.__setpoint__.schema}")
        elif write:
            _write(name, changes, root.__setpoint__.schema)
            print(f"{name}: is of schema {root.__setpoint__.schema} now")
        else:
            for change in changes:
                print("\n".join(_diff(change)))
    return 0


def _file(root: type[Config], name: str, start: int | None, notes: list[str]) -> list[Change]:
    """The change of one configuration file."""
    document = read_file(name)
    data = {key: value for key, value in document.data.items() if key != HEADER}
    said = schema_of(root, document.data, name)
    if said is not None and start not in (None, said):
        raise SetpointError(f"{name} says that it is of schema {said}; leave --from {start} out")
    schema = said or start or oldest_schema(root, data)
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
    """The changes of the three files of a record."""
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


def _write(name: str, changes: list[Change], schema: int) -> None:
    if not changes[0].is_record:
        for change in changes:
            write_text(change.path, change.after)
        return
    # No run may be going on in the directory meanwhile.
    with RunDirectory.create(name) as run:
        run.write_record({change.path.name: change.after for change in changes}, schema)


def _diff(change: Change) -> Iterator[str]:
    from difflib import unified_diff

    shown = str(change.path) if change.is_record else os.path.relpath(change.path)
    before, after = change.before.splitlines(), change.after.splitlines()
    yield from unified_diff(before, after, shown, f"{shown} (migrated)", lineterm="")
