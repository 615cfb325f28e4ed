"""`setpoint runs ...` and `watch`: list, label, verify and follow runs, and show lost time."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from setpoint.cli.options import IMPORT, JSON, Arguments, Command, Option
from setpoint.cli.output import bold, emit, print_notes, table
from setpoint.cli.source import prepare, run_path
from setpoint.config import ABSENT, SetpointError, did_you_mean, plain, plural
from setpoint.config.words.errors import printable
from setpoint.ops.proof import record_problems, verify_chain
from setpoint.report.goodput import FAILED, RUNNING
from setpoint.report.plot import blocks, chart
from setpoint.report.table import Table
from setpoint.runs.index import Labels, indexed, read_labels, require_name, write_labels
from setpoint.runs.live_view import EVENTS, Watched
from setpoint.runs.query import parse
from setpoint.track.console import is_terminal, short_count, short_time
from setpoint.track.jsonl import plain_numbers
from setpoint.track.run_directory import is_run_directory, not_a_run
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


def run_directories(words: list[str], arguments: Arguments) -> list[Path]:
    """The run directories given on a command line."""
    paths = [Path(run_path(word, arguments)) for word in words]
    for path in paths:
        if not is_run_directory(path):
            raise not_a_run(path)
    return paths


@Command(
    "runs list [FOLDER...]",
    Option("--where CONDITION", "Show only runs that meet a condition."),
    Option("--column NAME", "Show this column instead of the default ones.", True),
    Option("--sort NAME", "Sort by a column; runs without it come last."),
    Option("--reverse", "Sort the largest first.", requires="--sort"),
    Option("--all", f"Show all runs; default: at most {MAX_RUNS}."),
    Option("--archived", "Show archived runs as well."),
    Option("--csv", "Print comma-separated values.", excludes="--json"),
    JSON,
)
def runs_list(arguments: Arguments) -> int:
    """List the runs below folders (default: runs), the newest last, with status and metrics.

    A column is a field (optimizer.lr), a metric (train.mean_loss, val.loss,
    evaluation.held_out_loss.min), or one of run, status, step, started, updated, fingerprint,
    goodput, tags, note. The status is finished, stopped (on request), failed, running or killed;
    goodput is the share of the time that went into steps (`setpoint runs goodput`).

    --where takes comparisons with < <= > >= = != and ~ (contains the text, or matches its * and ?),
    combined with and, or, not and parentheses. The file .runs.sqlite3 in the folder caches the
    records of runs, so that thousands are listed quickly; it can be deleted at any time.

    Examples:
        setpoint runs list  all runs
        setpoint runs list --where 'optimizer.lr > 1e-4' --sort val.loss  the best first
        setpoint runs list --where 'status = failed'  failed runs
    """
    condition, order = arguments.value("--where"), arguments.value("--sort")
    query = None if condition is None else parse(condition)
    folders = [Path(folder) for folder in arguments.positional or ["runs"]]
    is_new = folders == [Path("runs")] and not folders[0].exists()  # nothing was trained here yet
    runs = [] if is_new else [run for folder in folders for run in indexed(folder)]
    if len(folders) > 1:
        for run in runs:
            run.facts["run"] = run.path.as_posix()
    notes = [f"{run.facts['run']}: {text}" for run in runs for text in run.problems]
    if not runs:
        places = ", ".join(str(folder.absolute()) for folder in folders)
        notes.append(f"there are no runs yet in {places}; `setpoint train` creates them")
    shown = runs
    if not arguments.has("--archived"):
        shown = [run for run in runs if not run.facts["archived"]]
        if archived := len(runs) - len(shown):
            notes.append(f"archived runs not shown: {archived}; --archived shows them")
    columns = arguments.values("--column") or [
        name
        for number, name in enumerate(COLUMNS)
        if number < 3 or any(run.get(name) not in (ABSENT, [], "", None) for run in shown)
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
        # The first of a given order, otherwise the newest.
        result.rows = result.rows[:MAX_RUNS] if order else result.rows[-MAX_RUNS:]
        notes.append(f"runs not shown: {hidden}; --all shows them")
    print_runs(arguments, result, notes)
    return 0


def print_runs(arguments: Arguments, result: Table, notes: list[str]) -> None:
    """Print a table of runs as text, CSV or JSON, with notes on standard error."""

    def lines() -> str:
        return table(result.cells(), result.columns) if result.rows else "no runs"

    if arguments.has("--csv"):
        print(result.to_csv(), end="", flush=True)
        print_notes(notes)
    else:

        def facts() -> dict[str, Any]:
            return {"runs": plain(plain_numbers(result.to_json())), "notes": notes}

        emit(arguments, facts, lines, notes)


@Command("runs tag TAG RUN...", Option("--remove", "Remove the tag."))
def runs_tag(arguments: Arguments) -> int:
    """Tag runs; `setpoint runs list --where 'tags ~ TAG'` finds them.

    Tags are kept in labels.json in the run directory and are not part of its configuration.

    Examples:
        setpoint runs tag baseline runs/tiny-3fa94c21  tag a run
    """
    tag, *words = arguments.positional
    if is_run_directory(Path(tag)):
        raise SetpointError(f"the tag must come first: setpoint runs tag TAG {tag}")
    if not re.fullmatch(r"[\w.:/+@-]+", tag):
        raise SetpointError(f"{tag!r} is not a tag\nValid: letters, digits and _ . : / + @ -")
    paths, removes = run_directories(words, arguments), arguments.has("--remove")
    if removes:
        print_notes([f"{p} has no tag {tag}" for p in paths if tag not in read_labels(p).tags])

    def change(labels: Labels) -> Labels:
        kept = tuple(other for other in labels.tags if other != tag)
        return replace(labels, tags=kept if removes else (*kept, tag))

    return _relabel(paths, change)


@Command("runs note RUN TEXT")
def runs_note(arguments: Arguments) -> int:
    """Write a note to a run in place of the one before; an empty text removes it.

    It is kept in labels.json in the run directory.

    Examples:
        setpoint runs note runs/tiny-3fa94c21 'diverges after 2,000 steps'  write a note
    """
    path, text = arguments.positional
    return _relabel(
        run_directories([path], arguments), lambda labels: replace(labels, note=text.strip())
    )


@Command("runs archive RUN...", Option("--restore", "List the runs again."))
def runs_archive(arguments: Arguments) -> int:
    """Hide runs from `setpoint runs list` unless --archived is given.

    Nothing is moved or removed: the mark is kept in labels.json in the run directory.

    Examples:
        setpoint runs archive runs/tiny-3fa94c21  hide a run from lists
    """
    archived = not arguments.has("--restore")
    paths = run_directories(arguments.positional, arguments)
    return _relabel(paths, lambda labels: replace(labels, archived=archived))


def _relabel(paths: list[Path], change: Callable[[Labels], Labels]) -> int:
    """Change the labels of runs; all are read before any is written."""
    before = [read_labels(path) for path in paths]
    for path, labels in zip(paths, before, strict=True):
        if (changed := change(labels)) != labels:
            write_labels(path, changed)
    return 0


@Command("runs goodput RUN...", JSON)
def runs_goodput(arguments: Arguments) -> int:
    """Show where the time of runs went, over all of their sessions.

    Goodput is the share of time spent in steps that are part of the final run (trained), of which
    waiting is the time spent waiting for data. Lost time went into steps and evaluations that were
    repeated after a kill, a failure or a rollback. Starting is the time from process start until
    the model has reached the state of the run. Saving is the time for which checkpoints blocked
    training. Idle is the time between sessions, including the work of a killed process after its
    last row of metrics.

    Examples:
        setpoint runs goodput runs/tiny-3fa94c21  the cost of kills and saves
    """
    spent = {path: goodput_of(path) for path in run_directories(arguments.positional, arguments)}
    lines: list[str] = []
    for path, times in spent.items():
        if times.share is None:
            lines.append(f"{path}: no time is recorded")
            continue
        lost = f", {plural(times.lost_steps, 'step')} lost" if times.lost_steps else ""
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
    "runs verify RUN...",
    Option("--head HASH", "The expected head of the run's chain."),
    IMPORT,
    JSON,
)
def runs_verify(arguments: Arguments) -> int:
    """Verify the records of runs; the exit status is 1 if something is damaged.

    The configuration must resolve to its recorded fingerprint; rows of metrics and events must be
    complete, and the steps of rows must increase. Rows, events and the manifests of checkpoints are
    compared with the run's chain of hashes (chain.jsonl); changed, removed, inserted and moved
    entries are named. The head of the chain, printed at the end of training, covers all of it:
    --head compares it with a copy kept elsewhere. `setpoint checkpoint verify` compares the bytes
    of checkpoints.

    Examples:
        setpoint runs verify runs/*  all runs
        setpoint runs verify runs/tiny-3fa94c21 --head 5d0c...  the run with this head
    """
    paths, head = run_directories(arguments.positional, arguments), arguments.value("--head")
    if head is not None and len(paths) > 1:
        raise SetpointError(f"--head applies to one run, but {len(paths)} are given")
    prepare(arguments)
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    for path in paths:
        seal = verify_chain(path)
        problems = record_problems(path)
        try:
            read_labels(path)
        except SetpointError as error:
            problems.append(str(error))
        problems += seal.problems
        if head is not None and seal.head != head:
            problems.append(f"the head of its chain is {seal.head or 'missing'}, not {head}")
        rows.append({"run": str(path), **asdict(seal), "problems": problems})
        kinds = {"row": seal.rows, "event": seal.events, "checkpoint": seal.checkpoints}
        sealed = "sealed: " + ", ".join(plural(number, kind) for kind, number in kinds.items())
        sealed_lines = [] if seal.head is None else [f"{sealed}; head {seal.head}"]
        lines.append(f"{path}:" if problems else f"{path}: ok")
        lines += [f"  {printable(line)}" for line in (*problems, *sealed_lines, *seal.notes)]
    emit(arguments, {"runs": rows}, "\n".join(lines))
    return 1 if any(row["problems"] for row in rows) else 0


MAX_ERROR = 600
"""Characters of an error that are shown."""
SHOWN = ("mean_loss", "lr", "grad_norm", "tokens_per_second", "mfu", "data_wait")
"""Columns of the training row that are shown."""
HIDDEN = ("step", "tokens", "epoch", "seconds", "target_tokens", "target_bytes")
"""Columns of other rows that are not shown."""


@Command(
    "watch RUN",
    Option("--metric NAME", "A curve, such as train.grad_norm, instead of the default.", True),
    Option("--every SECONDS", "Seconds between updates; default: 2.", type=float, at_least=0.1),
    Option("--once", "Print the current state and exit."),
    JSON,
)
def watch(arguments: Arguments) -> int:
    """Show a run in the terminal while it trains.

    The view has curves, position, remaining time, dead or hanging ranks (resilience.heartbeat), and
    the latest events. Only the files of the run directory are read, so it works wherever they are
    accessible; nothing is changed. The command ends with the run or on Ctrl-C; in a pipe it prints
    once.

    Examples:
        setpoint watch runs/tiny-3fa94c21  until it ends
        setpoint watch runs/tiny-3fa94c21 --metric train.grad_norm  another curve
        setpoint watch runs/tiny-3fa94c21 --json  for a script that monitors runs
    """
    names = arguments.values("--metric")
    for name in names:
        if "." not in name:
            raise SetpointError(f"--metric must be KIND.COLUMN, such as train.loss; got {name!r}")
    every = arguments.number("--every") or 2.0
    watched = Watched(Path(run_path(arguments.positional[0], arguments)))
    if names:
        watched.columns = watched.requested = names
    watched.poll()
    if is_terminal(sys.stdout) and not (arguments.has("--json") or arguments.has("--once")):
        _follow(watched, every)
        return 0
    size = shutil.get_terminal_size((100, 40))
    emit(arguments, watched.to_json, lambda: rendered(watched, *size, colour=False))
    return 0


def _follow(watched: Watched, every: float) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)

    def text() -> Text:
        return Text.from_ansi(rendered(watched, *console.size, colour=True))

    try:
        with Live(text(), console=console, auto_refresh=False) as live:
            while watched.status == RUNNING:
                time.sleep(every)
                watched.poll()
                live.update(text(), refresh=True)
    except KeyboardInterrupt:
        print(f"the run continues: setpoint watch {watched.path}")


def rendered(watched: Watched, columns: int, lines: int, colour: bool) -> str:
    """Render the view of a run, for a given terminal size."""
    parts = [bold(_headline(watched)) if colour else _headline(watched)]
    for kind, row in watched.last.items():
        figures = [
            f"{name} {_number(row[name])}"
            for name in (SHOWN if kind == "train" else row)
            if name not in HIDDEN and isinstance(row.get(name), int | float)
        ]
        if figures:
            parts.append(_within(_plain(f"{kind}, step {row.get('step')}: "), figures, columns))
    for rank in watched.troubled():
        how = "is gone" if rank.is_gone else "stands still"
        where = f"rank {rank.rank} on {_plain(str(rank.host))} {how}"
        parts.append(f"{where} for {short_time(rank.seconds)} at step {rank.step}")
    known = [event for event in watched.events if event.get("event") in EVENTS]
    parts += [_event(event)[:columns] for event in known[-3:]]
    if watched.status == FAILED:
        fault = next(event for event in reversed(watched.events) if event.get("event") == "fault")
        parts.append(_plain(" ".join(f"error: {fault.get('error')}".split())[:MAX_ERROR]))
    if watched.broken:
        parts.append(
            f"lines that are not rows: {watched.broken:,}; `setpoint runs verify` lists them"
        )
    missing = [name for name in watched.requested if name not in watched.known]
    for name in missing if watched.known else ():
        parts.append(_plain(f"no row has {name}.{did_you_mean(name, watched.known, ' ')}"))
    curves = [name for name in watched.columns if watched.curves.get(name)]
    height = max(6, (lines - len(parts) - 12 * len(curves)) // max(1, len(curves)))
    for name in curves:
        parts += ["", _curve(watched, name, columns, min(height, 16), colour)]
    return "\n".join(parts)


def _headline(watched: Watched) -> str:
    position, status = watched.position, watched.status
    words = [f"{_plain(watched.path.name)}: {status}"]
    if position is not None:
        done = watched.done
        words.append(f"step {position.step:,}" + ("" if done is None else f" ({done:.0%})"))
        words.append(f"{short_count(position.tokens)} tokens")
    if status == RUNNING:
        if watched.seconds_left is not None:
            words.append(f"{short_time(watched.seconds_left)} left")
        if watched.silent is not None and watched.silent > 60:
            words.append(f"nothing was written for {short_time(watched.silent)}")
    return ", ".join(words)


def _event(event: Any) -> str:
    skip = ("event", "time", "data", "kind")
    more = [
        f"{key} {_number(value)}"
        for key, value in event.items()
        if key not in skip
        and (isinstance(value, int | float) or (isinstance(value, str) and len(value) < 60))
    ]
    return _plain(f"{event.get('time', '')}  {event.get('event')}  {', '.join(more[:6])}".rstrip())


def _within(start: str, figures: list[str], columns: int) -> str:
    """Format a line with as many figures as fit."""
    line = start + _plain(figures[0])
    for figure in figures[1:]:
        if len(line) + len(figure) + 2 > columns:
            break
        line += f", {_plain(figure)}"
    return line


def _plain(text: str) -> str:
    """Remove control characters from a recorded text."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _number(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _curve(watched: Watched, name: str, columns: int, height: int, colour: bool) -> str:
    """A chart if plotille is installed, else a line of blocks."""
    points = watched.curves[name]
    if len(points) > 1 and find_spec("plotille") is not None:
        return chart(watched.plot(name), max(30, columns - 24), height, colour)
    return f"{name}  {blocks([y for _, y in points], max(10, columns - len(name) - 30))}"
