"""`setpoint diff` and `fingerprint`: what differs between configurations, and their hash."""

from __future__ import annotations

import sys
from typing import Any

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
from setpoint.cli.output import bold, dim, emit, table
from setpoint.cli.source import open_source, open_table
from setpoint.config import SetpointError, all_fields, did_you_mean, fingerprint, plain
from setpoint.config.record.compare import Difference, Entry, Table, compare
from setpoint.config.record.record import ROLES, canonical, identity_leaves
from setpoint.config.words.names import within
from setpoint.config.words.text import in_full

LAYERS = (WITH, FILE, WORLD_SIZE)
"""Options that change a configuration, so that it must be clear which one."""


@Command(
    "diff",
    "A B [MORE] [OVERRIDES]",
    "Print only the values that differ between two sources, each with its origin; of three or\n"
    "more sources, a table. A run, a checkpoint and a git revision are compared as they were\n"
    "recorded, so that fields of old code which no longer exist show as well.\n"
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
        ("setpoint diff tiny tiny --optimizer.lr 1e-3", "all that an override changes"),
        ("setpoint diff HEAD~1:tiny tiny", "what the last commit changed in a preset"),
        ("setpoint diff runs/a runs/b runs/c --role identity", "differences of runs, as a table"),
        ("setpoint diff runs/a runs/b runs/c --origins", "the same, each value with its origin"),
    ],
    positional=(2, sys.maxsize),
)
def diff(arguments: Arguments) -> int:
    """Print the differences; 1 if there are any."""
    sources = arguments.positional
    many = len(sources) > 2
    if many:
        _refuse_layers(arguments)
    roles = [ROLES[n] for text in arguments.values("--role") for n in text.split(",")] or None
    tables = [
        open_table(source, arguments, overrides=not many and at == 1)
        for at, source in enumerate(sources)
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

    emit(arguments, lambda: [_facts(row, sources) for row in rows], text)
    return 1 if rows else 0


def _refuse_layers(arguments: Arguments) -> None:
    refuse_misspelt_options(arguments, arguments.command.program.root.__setpoint__.fields)
    given = [option.name for option in LAYERS if arguments.has(option.name)]
    given += [token for token in arguments.overrides if token.startswith("-") or "=" in token]
    if given or arguments.overrides:
        word = (given or arguments.overrides)[0]
        raise SetpointError(
            f"{word} could apply to any of {len(arguments.positional)} sources; it can be given "
            f"with two, and then applies to the second"
        )


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
        facts = {} if entry is None else {"value": plain(entry.value), "origin": entry.origin}
        sides.append({"source": source, **facts})
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


def _distinct_names(sources: list[str]) -> list[str]:
    """The names of the sources; with their places where two are the same."""
    if len(set(sources)) == len(sources):
        return sources
    if len(sources) == 2:
        return [f"A: {sources[0]}", f"B: {sources[1]}"]
    return [f"{place}: {source}" for place, source in enumerate(sources, 1)]


def _cell(entry: Entry | None) -> str:
    return "(absent)" if entry is None else in_full(entry.value)


@Command(
    "fingerprint",
    "SOURCE [OTHER_SOURCE] [OVERRIDES]",
    "Print one hash (SHA-256) of all identity fields, those that affect training. Configurations\n"
    "with the same fingerprint train the same model; runtime fields (device, logging) and budget\n"
    "fields (duration) are not in it.\n"
    "\n"
    "With two sources both are printed, and the exit status is 1 if they differ; OVERRIDES,\n"
    "modifiers, further files and the environment apply to the second." + "\n" + SOURCE_HELP,
    [
        Option("--explain", "Print the hashed values; of two sources, those that differ."),
        *RANKED,
    ],
    [
        ("setpoint fingerprint tiny", "the preset's fingerprint"),
        ("setpoint fingerprint tiny --seed 2", "another seed is another run"),
        ("setpoint fingerprint tiny runs/tiny-3fa94c21 --explain", "why a run is another one"),
    ],
    positional=(1, 2),
)
def fingerprint_command(arguments: Arguments) -> int:
    """Print the fingerprint, or two of them, with the hashed values if asked."""
    explains = arguments.has("--explain")
    if len(arguments.positional) == 2:
        return _two_fingerprints(arguments, explains)
    config = open_source(arguments.source, arguments).resolve()
    digest, lines = fingerprint(config), [fingerprint(config)]
    leaves = list(identity_leaves(config)) if explains else []
    lines += [
        f"  {leaf.key} = {in_full(leaf.value)}" + dim(f"  {leaf.describe_origin()}")
        for leaf in leaves
    ]

    def facts() -> dict[str, Any]:
        import json

        origins = {leaf.key: leaf.describe_origin() for leaf in leaves}
        identity = {"fingerprint": digest, "identity": json.loads(canonical(config))}
        return {**identity, "origins": origins} if explains else identity

    emit(arguments, facts, "\n".join(lines))
    return 0


def _two_fingerprints(arguments: Arguments, explains: bool) -> int:
    from setpoint.config import IDENTITY, differences

    first, second = arguments.positional
    left = open_source(first, arguments, overrides=False).resolve()
    right = open_source(second, arguments).resolve()
    digests = [fingerprint(left), fingerprint(right)]
    rows = differences(left, right, [IDENTITY]) if explains else []
    facts: dict[str, Any] = {"fingerprints": digests, "equal": digests[0] == digests[1]}
    if explains:
        facts["differences"] = [plain(row.to_json()) for row in rows]
    width = max(len(first), len(second))
    lines = [
        f"{name:<{width}}  {digest}" for name, digest in zip((first, second), digests, strict=True)
    ]
    emit(arguments, facts, "\n".join([*lines, *render(rows, [first, second])]))
    return int(digests[0] != digests[1])
