"""`setpoint diff`: what differs between configurations, with the origins."""

from __future__ import annotations

import sys

from setpoint.cli.options import (
    FILE,
    RANKED,
    SOURCE_HELP,
    WITH,
    WORLD_SIZE,
    Arguments,
    Command,
    Option,
    refuse_misspelt_options,
)
from setpoint.cli.output import bold, dim, table
from setpoint.cli.source import open_table
from setpoint.config import (
    ROLES,
    Difference,
    Entry,
    Role,
    SetpointError,
    Table,
    all_fields,
    compare,
    did_you_mean,
    in_full,
    plain,
    within,
)

ABSENT_TEXT = "(absent)"
LAYERS = (WITH, FILE, WORLD_SIZE)
"""The options that change a configuration, so that it must be clear which one."""

COMMAND = Command(
    "diff",
    "A B [MORE] [OVERRIDES]",
    "Print only the values that differ between two sources, each with where it comes from; of\n"
    "three or more sources, a table. A run, a checkpoint and a git revision are compared as they\n"
    "were recorded, so that fields of old code which no longer exist show as well.\n"
    "\n"
    "OVERRIDES, modifiers, further files and the environment apply to B, which is resolved anew\n"
    "by them. With three or more sources they are refused, and the environment is not read. The\n"
    "exit status is 0 if nothing differs, 1 if something does, and 2 if a source cannot be read."
    + "\n"
    + SOURCE_HELP,
    [
        Option(
            "--role", "Compare only identity, budget or runtime fields.", "ROLE", True, tuple(ROLES)
        ),
        Option("--ignore", "Leave a field or section out.", "PATH", True),
        Option("--origins", "Print origins of three or more sources instead of a table."),
        *RANKED,
    ],
    [
        ("setpoint diff tiny runs/tiny-3fa94c21", "what a run changed"),
        ("setpoint diff tiny tiny --optimizer.lr 1e-3", "what an override changes, in the end"),
        ("setpoint diff HEAD~1:tiny tiny", "what the last commit changed in a preset"),
        ("setpoint diff runs/a runs/b runs/c --role identity", "in what runs differ, as a table"),
        ("setpoint diff runs/a runs/b runs/c --origins", "the same, each value with its origin"),
    ],
    positional=(2, sys.maxsize),
)


@COMMAND
def run(arguments: Arguments) -> int:
    """Print the differences; 1 if there are any."""
    sources = arguments.positional
    many = len(sources) > 2
    if many:
        _refuse_layers(arguments)
    roles = [_role(name) for name in arguments.options.get("--role", [])] or None
    tables = [
        open_table(source, arguments, overrides=not many and at == 1)
        for at, source in enumerate(sources)
    ]
    ignored = [
        _known_path(path, tables, arguments) for path in arguments.options.get("--ignore", [])
    ]
    rows = compare(tables, roles, ignored)
    if arguments.has("--json"):
        import json

        print(json.dumps([_facts(row, sources) for row in rows], indent=2))
    elif not rows:
        print(_equal(sources, tables, arguments))
    else:
        as_table = many and not arguments.has("--origins")
        for line in render_table(rows, sources) if as_table else render(rows, sources):
            print(line)
    return 1 if rows else 0


def _equal(sources: list[str], tables: list[Table], arguments: Arguments) -> str:
    """What is said where nothing differs, and what was left out of the comparison."""
    left = [f"--{name} {value}" for name in ("role", "ignore")
            for value in arguments.options.get(f"--{name}", [])]  # fmt: skip
    compared = f" with {' '.join(left)}" if left else ""
    names = " and ".join(dict.fromkeys(sources))
    if not left:
        compared = f" in all {len(tables[0])} values"
    return f"nothing differs{compared}: {names}"


def _refuse_layers(arguments: Arguments) -> None:
    refuse_misspelt_options(arguments, arguments.command.program.root.__setpoint__.fields)
    given = [option.name for option in LAYERS if arguments.has(option.name)]
    given += [token for token in arguments.overrides if token.startswith("-") or "=" in token]
    if given or arguments.overrides:
        word = (given or arguments.overrides)[0]
        raise SetpointError(
            f"of {len(arguments.positional)} sources it is not clear which one {word} is meant "
            f"for; it can be given with two, and then applies to the second"
        )


def _role(name: str) -> Role:
    if name not in ROLES:
        raise SetpointError(f"--role is one of {', '.join(ROLES)}, got {name!r}")
    return ROLES[name]


def _known_path(typed: str, tables: list[Table], arguments: Arguments) -> str:
    """A path to ignore, as the tables spell it.

    Raises:
        SetpointError: if there is none: it would be compared under its right name.
    """
    fields = [name for name, _ in all_fields(arguments.command.program.root)]
    keys = [key for table in tables for key in table]
    for path in (typed, typed.replace("-", "_")):  # keys of mappings are as they were written
        if path in fields or any(within(key, path) for key in keys):
            return path
    meant = did_you_mean(typed, [*fields, *keys], " ")
    raise SetpointError(f"--ignore {typed}: there is no such field or section.{meant}")


def _facts(row: Difference, sources: list[str]) -> object:
    """A difference for machines: two sides by name, more of them as a list."""
    if len(sources) == 2:
        return plain(row.to_json())
    sides: list[dict[str, object]] = []
    for source, entry in zip(sources, row.entries, strict=True):
        found = {} if entry is None else {"value": plain(entry.value), "origin": entry.origin}
        sides.append({"source": source, **found})
    return {"path": row.path, "role": row.role.name, "sides": sides}


def render(rows: list[Difference], sources: list[str]) -> list[str]:
    """The differences of a few sources as lines for people, with origins."""
    names = _distinct_names(sources)
    width = max(map(len, names))
    lines: list[str] = []
    for row in rows:
        lines.append(bold(row.path) + dim(f"  ({row.role.name})"))
        texts = [_cell(entry) for entry in row.entries]
        # One long value shall not push the other's origin off the screen.
        column = max((len(text) for text in texts if len(text) <= 40), default=0)
        for name, text, entry in zip(names, texts, row.entries, strict=True):
            origin = dim(f"  {entry.origin}") if entry is not None and entry.origin else ""
            lines.append(f"  {name:<{width}}  {text:<{column}}{origin}".rstrip())
    return lines


def render_table(rows: list[Difference], sources: list[str]) -> list[str]:
    """The differences of many sources as a table for people."""
    if not rows:
        return []
    names = _distinct_names(sources)
    paths = [row.path for row in rows]
    cells = [[_cell(entry) for entry in row.entries] for row in rows]
    if len(names) > len(paths):
        cells = [list(column) for column in zip(*cells, strict=True)]
        names, paths = paths, names
    lines = [[path, *values] for path, values in zip(paths, cells, strict=True)]
    return table(lines, ["", *names]).splitlines()


def _distinct_names(sources: list[str]) -> list[str]:
    """The names of the sources; with their places where two are the same."""
    if len(set(sources)) == len(sources):
        return sources
    if len(sources) == 2:
        return [f"A: {sources[0]}", f"B: {sources[1]}"]
    return [f"{place}: {source}" for place, source in enumerate(sources, 1)]


def _cell(entry: Entry | None) -> str:
    return ABSENT_TEXT if entry is None else in_full(entry.value)
