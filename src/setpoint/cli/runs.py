"""`setpoint runs ...`: list runs, label them, verify their records, and show where time went."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from setpoint.cli.options import IMPORT, JSON, Arguments, Command, Option
from setpoint.cli.output import emit, print_notes, table
from setpoint.cli.source import prepare
from setpoint.config import ABSENT, SetpointError, read_record, resolve
from setpoint.config.words.errors import printable
from setpoint.ops.proof import verify_chain
from setpoint.report.table import Table
from setpoint.runs.index import indexed, require_name
from setpoint.runs.labels import Labels, read_labels, write_labels
from setpoint.runs.query import parse
from setpoint.track.console import short_time
from setpoint.track.jsonl import read_jsonl
from setpoint.track.run_directory import is_run_directory
from setpoint.train.config import Job
from setpoint.train.run_status import goodput_of

MAX_RUNS = 50
"""Runs that are listed without --all."""
COLUMNS = (
    "run",
    "status",
    "step",
    "train.mean_loss",
    "evaluation.held_out_loss",
    "started",
    "tags",
)
"""Columns that are shown by default; those after the third only where some run has a value."""


def run_directories(words: list[str]) -> list[Path]:
    """The run directories on a command line.

    Raises:
        SetpointError: if one is no run directory.
    """
    paths = [Path(word) for word in words]
    for path in paths:
        if not is_run_directory(path):
            raise SetpointError(
                f"{path} is no run directory: it has no record of a run\nValid: a folder that "
                f"`setpoint train` made; `setpoint runs list` shows them"
            )
    return paths


@Command(
    "runs list",
    "[FOLDER...]",
    "Print the runs below folders (runs, where none is given), the newest last, with status and\n"
    "metrics. A column is a field (optimizer.lr), a metric (train.mean_loss, val.loss,\n"
    "evaluation.held_out_loss.min), or one of run, status, step, started, updated, fingerprint,\n"
    "goodput, tags, note. status is finished, stopped (on request), failed, running or killed;\n"
    "goodput the share of the time that went into steps (`setpoint runs goodput`).\n"
    "\n"
    "--where takes comparisons with < <= > >= = != and ~ (contains the text, or matches its *\n"
    "and ?), joined by and, or, not and brackets. What has been read of runs is kept in\n"
    ".runs.sqlite3 in the folder, so that thousands are listed at once; it may be removed at\n"
    "any time.",
    [
        Option("--where", "Show only runs that meet a condition.", "CONDITION"),
        Option("--column", "Show this column instead of the default ones.", "NAME", True),
        Option("--sort", "Sort by a column; runs without it come last.", "NAME"),
        Option("--reverse", "Sort the largest first.", requires=("--sort",)),
        Option("--all", f"Show all runs, also where they are more than {MAX_RUNS}."),
        Option("--archived", "Show archived runs as well."),
        Option("--csv", "Print comma-separated values.", excludes=("--json",)),
        JSON,
    ],
    [
        ("setpoint runs list", "all runs"),
        ("setpoint runs list --where 'optimizer.lr > 1e-4' --sort val.loss", "the best first"),
        ("setpoint runs list --where 'status = failed'", "failed runs"),
    ],
    positional=(0, sys.maxsize),
)
def runs_list(arguments: Arguments) -> int:
    """Print the table of runs."""
    condition, order = arguments.value("--where"), arguments.value("--sort")
    query = None if condition is None else parse(condition)
    runs = [run for folder in arguments.positional or ["runs"] for run in indexed(Path(folder))]
    notes = [f"{run.facts['run']}: {text}" for run in runs for text in run.problems]
    shown = runs
    if not arguments.has("--archived"):
        shown = [run for run in runs if not run.facts["archived"]]
        if archived := len(runs) - len(shown):
            notes.append(f"{archived} archived runs are not shown; --archived shows them")
    columns = arguments.values("--column") or [
        name
        for at, name in enumerate(COLUMNS)
        if at < 3 or any(run.get(name) not in (ABSENT, [], "", None) for run in shown)
    ]
    for name in [*columns, *([] if order is None else [order]), *(query.names if query else ())]:
        require_name(runs, name)
    if query is not None:
        shown = [run for run in shown if query.holds(run.get)]
    result = Table(columns, [[run.get(name) for name in columns] for run in shown])
    if order is not None:
        if order not in columns:
            result.add(order, [run.get(order) for run in shown])
        result.sort(order, arguments.has("--reverse"))
    hidden = len(shown) - MAX_RUNS
    if hidden > 0 and not any(map(arguments.has, ("--all", "--csv", "--json"))):
        # The first of an order, the newest without one.
        result.rows = result.rows[:MAX_RUNS] if order else result.rows[-MAX_RUNS:]
        notes.append(f"{hidden} more runs are not shown; --all shows them")
    print_runs(arguments, result, notes)
    return 0


def print_runs(arguments: Arguments, result: Table, notes: list[str]) -> None:
    """Print a table of runs as text, CSV or JSON, and notes on standard error."""

    def lines() -> str:
        return table(result.cells(), result.columns) if result.rows else "no runs"

    if arguments.has("--csv"):
        print(result.to_csv(), end="", flush=True)
        print_notes(notes)
    else:
        emit(arguments, lambda: {"runs": result.to_json(), "notes": notes}, lines, notes)


@Command(
    "runs tag",
    "TAG RUN...",
    "Tag runs; `setpoint runs list --where 'tags ~ TAG'` finds them. Tags are kept in\n"
    "labels.json in the run directory and are no part of its configuration.",
    [Option("--remove", "Remove the tag.")],
    [("setpoint runs tag baseline runs/tiny-3fa94c21", "tag a run")],
    positional=(2, sys.maxsize),
)
def runs_tag(arguments: Arguments) -> int:
    """Add the tag, or remove it."""
    tag, *words = arguments.positional
    if not re.fullmatch(r"[\w.:/+@-]+", tag):
        raise SetpointError(f"{tag!r} is no tag\nValid: letters, digits and _ . : / + @ -")
    paths, removes = run_directories(words), arguments.has("--remove")
    if removes:
        print_notes([f"{p} has no tag {tag}" for p in paths if tag not in read_labels(p).tags])

    def change(labels: Labels) -> Labels:
        others = tuple(other for other in labels.tags if other != tag)
        return replace(labels, tags=others if removes else (*others, tag))

    return _relabel(paths, change)


@Command(
    "runs note",
    "RUN TEXT",
    "Write a note to a run in place of the one before; an empty text removes it. It is kept in\n"
    "labels.json in the run directory.",
    [],
    [("setpoint runs note runs/tiny-3fa94c21 'diverges after 2,000 steps'", "write a note")],
    positional=(2, 2),
)
def runs_note(arguments: Arguments) -> int:
    """Write the note."""
    path, text = arguments.positional
    return _relabel(run_directories([path]), lambda labels: replace(labels, note=text.strip()))


@Command(
    "runs archive",
    "RUN...",
    "Hide runs from `setpoint runs list` unless --archived is given. Nothing is moved or\n"
    "removed: the mark is kept in labels.json in the run directory.",
    [Option("--restore", "List the runs again.")],
    [("setpoint runs archive runs/tiny-3fa94c21", "hide a run from lists")],
    positional=(1, sys.maxsize),
)
def runs_archive(arguments: Arguments) -> int:
    """Set the mark, or remove it."""
    archived = not arguments.has("--restore")
    paths = run_directories(arguments.positional)
    return _relabel(paths, lambda labels: replace(labels, archived=archived))


def _relabel(paths: list[Path], change: Callable[[Labels], Labels]) -> int:
    """Change the labels of runs; all of them are read before one is written."""
    before = [read_labels(path) for path in paths]
    for path, labels in zip(paths, before, strict=True):
        if (changed := change(labels)) != labels:
            write_labels(path, changed)
    return 0


@Command(
    "runs goodput",
    "RUN...",
    "Print where the time of runs went, over all of their sessions, from events.jsonl and\n"
    "metrics.jsonl. Goodput is the share that went into steps which the run still has: trained.\n"
    "waiting is for data in these steps; lost are steps and evaluations that were trained again\n"
    "after a kill, a failure or a rollback; starting lasts from the start of the process until\n"
    "the model is where the run is; saving is how long checkpoints held up training; idle lies\n"
    "between sessions, with what a killed process did after its last row of metrics.",
    [JSON],
    [("setpoint runs goodput runs/tiny-3fa94c21", "what kills and saves have cost")],
    positional=(1, sys.maxsize),
)
def runs_goodput(arguments: Arguments) -> int:
    """Print a table for each run."""
    spent = {path: goodput_of(path) for path in run_directories(arguments.positional)}
    lines: list[str] = []
    for path, times in spent.items():
        if times.share is None:
            lines.append(f"{path}: no time is recorded")
            continue
        lost = f", {times.lost_steps:,} steps lost" if times.lost_steps else ""
        lines.append(
            f"{path}: goodput {times.share:.1%} of {short_time(times.wall)}, "
            f"sessions: {times.sessions}{lost}"
        )
        rows = [
            [f"  {name}", f"{seconds:,.1f} s", f"{seconds / times.wall:.1%}"]
            for name, seconds in times.parts.items()
        ]
        lines.append(table(rows, ("  part", "time", "share")))
    facts = [{"run": str(path), "goodput": t.share, **asdict(t)} for path, t in spent.items()]
    emit(arguments, {"runs": facts}, "\n".join(lines))
    return 0


@Command(
    "runs verify",
    "RUN...",
    "Read the records of runs: the configuration resolves to the fingerprint that it was\n"
    "recorded with, each row of metrics and each event is whole, steps of rows only grow, and\n"
    "rows, events and the manifests of checkpoints are those that the chain of hashes of the run\n"
    "has sealed (chain.jsonl): what was changed, removed, inserted or moved is named. The head\n"
    "of the chain, which the end of training prints, stands for all of it: --head compares it\n"
    "with one from elsewhere. Exit status 1 if something is not so. `setpoint checkpoint verify`\n"
    "compares the bytes of checkpoints.",
    [Option("--head", "The expected head of the run's chain.", "HASH"), IMPORT, JSON],
    [
        ("setpoint runs verify runs/*", "all runs"),
        ("setpoint runs verify runs/tiny-3fa94c21 --head 5d0c...", "the run with this head"),
    ],
    positional=(1, sys.maxsize),
)
def runs_verify(arguments: Arguments) -> int:
    """Verify the runs; 1 if something is wrong."""
    paths, head = run_directories(arguments.positional), arguments.value("--head")
    if head is not None and len(paths) > 1:
        raise SetpointError(f"--head is of one run, and {len(paths)} are given")
    prepare(arguments)
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    for path in paths:
        seal = verify_chain(path)
        problems = [*_record_problems(path), *seal.problems]
        if head is not None and seal.head != head:
            problems.append(f"the head of its chain is {seal.head or 'not there'}, not {head}")
        rows.append({"run": str(path), **asdict(seal), "problems": problems})
        sealed = f"sealed: {seal.rows} rows, {seal.events} events, {seal.checkpoints} checkpoints"
        sealed_lines = [] if seal.head is None else [f"{sealed}; head {seal.head}"]
        lines.append(f"{path}:" if problems else f"{path}: ok")
        lines += [f"  {printable(line)}" for line in (*problems, *sealed_lines, *seal.notes)]
    emit(arguments, {"runs": rows}, "\n".join(lines))
    return 1 if any(row["problems"] for row in rows) else 0


def _record_problems(path: Path) -> Iterator[str]:
    try:
        # Refuses a record that does not give the fingerprint which it states.
        resolve(read_record(Job, str(path))[0])
    except SetpointError as error:
        yield str(error)
    for name in ("events.jsonl", "metrics.jsonl"):
        damaged: list[str] = []
        try:
            rows = read_jsonl(path / name, damaged) if (path / name).exists() else []
        except SetpointError as error:
            yield str(error)
            continue
        yield from damaged
        if name == "metrics.jsonl":
            yield from _order_problems(rows)
    try:
        read_labels(path)
    except SetpointError as error:
        yield str(error)


def _order_problems(rows: list[dict[str, Any]]) -> Iterator[str]:
    last: dict[str, int] = {}
    for row in rows:
        kind, step = str(row.get("kind")), row.get("step")
        if not isinstance(step, int):
            yield f"metrics.jsonl: a row of {kind} has no step"
            return
        if step < last.get(kind, 0):
            yield f"metrics.jsonl: a row of {kind} at step {step} comes after step {last[kind]}"
            return
        last[kind] = step
