"""`setpoint runs list`: the runs of a folder, filtered, sorted and tagged."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from setpoint.cli.options import JSON, Arguments, Command, Option, refuse_overrides
from setpoint.cli.output import print_notes, table
from setpoint.config import (
    ABSENT,
    SetpointError,
    in_full,
    plain,
)
from setpoint.report.table import Table
from setpoint.report.width import fitted
from setpoint.runs.index import IndexedRun, indexed, require_name
from setpoint.runs.query import parse

MOST = 50  # runs that people can look through
USUAL = ("run", "status", "step", "train.mean_loss", "evaluation.held_out_loss", "started", "tags")

COMMAND = Command(
    "runs list",
    "[FOLDER...]",
    "Print the runs below folders (runs, where none is given), the newest last, with what they\n"
    "came to. A column is a field (optimizer.lr), a metric (train.mean_loss, val.loss,\n"
    "evaluation.held_out_loss.min), or one of run, status, step, started, updated, fingerprint,\n"
    "goodput, tags, note. status is finished, stopped (on request), failed, running or killed;\n"
    "goodput the share of the time that went into steps (`setpoint runs goodput`).\n"
    "\n"
    "--where takes comparisons with < <= > >= = != and ~ (holds the text, or matches its * and\n"
    "?), joined by and, or, not and brackets. What has been read of runs is kept in\n"
    ".runs.sqlite3 in the folder, so that thousands are listed at once; it may be removed at\n"
    "any time.",
    [
        Option("--where", "Show only runs that meet a condition.", "CONDITION"),
        Option("--column", "Show this column instead of the usual ones.", "NAME", True),
        Option("--sort", "Sort by a column; runs without it come last.", "NAME"),
        Option("--reverse", "Sort the largest first."),
        Option("--all", f"Show all runs, also where they are more than {MOST}."),
        Option("--archived", "Show archived runs as well."),
        Option("--csv", "Print comma-separated values."),
        JSON,
    ],
    [
        ("setpoint runs list", "what there is"),
        ("setpoint runs list --where 'optimizer.lr > 1e-4' --sort val.loss", "the best first"),
        ("setpoint runs list --where 'status = failed'", "what failed"),
    ],
    positional=(0, sys.maxsize),
)


@COMMAND
def run(arguments: Arguments) -> int:
    """Print the table."""
    refuse_overrides(arguments)
    if arguments.has("--json") and arguments.has("--csv"):
        raise SetpointError("--json and --csv contradict each other; give one")
    if arguments.has("--reverse") and not arguments.has("--sort"):
        raise SetpointError("--reverse has no effect without --sort")
    where, order = arguments.value("--where"), arguments.value("--sort")
    query = None if where is None else parse(where)
    found = [each for folder in arguments.positional or ["runs"] for each in indexed(Path(folder))]
    notes = [f"{each.facts['run']}: {text}" for each in found for text in each.problems]
    shown = found
    if not arguments.has("--archived"):
        shown = [each for each in found if not each.facts["archived"]]
        if away := len(found) - len(shown):
            notes.append(f"{away} archived runs are not shown; --archived shows them")
    columns = arguments.options.get("--column") or _usual(shown)
    for name in [*columns, *(() if order is None else (order,)), *(query.names if query else ())]:
        require_name(found, name)
    if query is not None:
        shown = [each for each in shown if query.holds(each.get)]
    result = Table(columns, [[each.get(name) for name in columns] for each in shown])
    if order is not None:
        _sort(result, shown, order, arguments.has("--reverse"))
    if arguments.has("--json"):
        import json

        print(json.dumps({"runs": result.to_json(plain), "notes": notes}, indent=2))
        return 0
    if arguments.has("--csv"):
        print(result.to_csv(in_full), end="")
    else:
        _print(result, order is not None, arguments.has("--all"), notes)
    sys.stdout.flush()
    print_notes(notes)
    return 0


def _usual(shown: list[IndexedRun]) -> list[str]:
    """The usual columns, as far as some run has them."""

    def is_there(value: Any) -> bool:
        return value is not ABSENT and value not in ([], "", None)

    return [
        name for name in USUAL
        if name in ("run", "status", "step") or any(is_there(each.get(name)) for each in shown)
    ]  # fmt: skip


def _sort(result: Table, shown: list[IndexedRun], order: str, reverse: bool) -> None:
    extra = order not in result.columns
    if extra:
        result.columns.append(order)
        result.headings.append(order)
        for row, each in zip(result.rows, shown, strict=True):
            row.append(each.get(order))
    result.sort(order, reverse)


def _print(result: Table, is_sorted: bool, everything: bool, notes: list[str]) -> None:
    count = len(result.rows)
    if not count:
        print("no runs")
        return
    if count > MOST and not everything:
        # The first of an order, the newest without one.
        result.rows = result.rows[:MOST] if is_sorted else result.rows[-MOST:]
        notes.append(f"{count - MOST} more runs are not shown; --all shows them")
    for row in result.rows:
        row[:] = [" ".join(cell) if isinstance(cell, list) else cell for cell in row]
    rows = result.cells(in_full)
    headings = result.headings
    if sys.stdout.isatty():  # elsewhere it stays whole, for other programs to read
        import shutil

        (headings, *rows), note = fitted(headings, rows, shutil.get_terminal_size().columns)
        notes.extend([note] if note else [])
    print(table(rows, headings))
