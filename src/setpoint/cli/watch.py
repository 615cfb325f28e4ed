"""`setpoint watch`: a run in the terminal while it trains, here or on another machine."""

from __future__ import annotations

import shutil
import sys
import time
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from setpoint.cli.options import JSON, Arguments, Command, Option
from setpoint.cli.output import bold, emit
from setpoint.config import SetpointError, did_you_mean
from setpoint.report.plot import chart
from setpoint.report.status import FAILED, RUNNING
from setpoint.runs.watch import EVENTS, Watched
from setpoint.track.console import is_terminal, short_count, short_time

BLOCKS = "▁▂▃▄▅▆▇█"
MAX_ERROR = 600
"""Characters of an error that are shown."""
SHOWN = ("mean_loss", "lr", "grad_norm", "tokens_per_second", "mfu", "data_wait")
"""Columns of the training row that are shown."""
HIDDEN = ("step", "tokens", "epoch", "seconds", "target_tokens", "target_bytes")
"""Columns of other rows that are not shown."""


@Command(
    "watch",
    "RUN",
    "Show a run while it trains: curves, position, the time that is left, ranks that are gone or\n"
    "stand still (resilience.heartbeat), and the last events. It reads the files of the\n"
    "run directory alone, so that it works wherever these can be seen, and changes nothing. It\n"
    "ends with the run; Ctrl-C ends it before. In a pipe it prints once.",
    [
        Option("--metric", "A curve, as train.grad_norm, in place of the default.", "NAME", True),
        Option("--every", "Seconds between updates; default: 2.", "SECONDS", type=float,
               at_least=0.1),
        Option("--once", "Print the present state, and end."),
        JSON,
    ],
    [
        ("setpoint watch runs/tiny-3fa94c21", "until it ends"),
        ("setpoint watch runs/tiny-3fa94c21 --metric train.grad_norm", "another curve"),
        ("setpoint watch runs/tiny-3fa94c21 --json", "for a script that looks after runs"),
    ],
)  # fmt: skip
def watch(arguments: Arguments) -> int:
    """Show the run until it has ended."""
    names = arguments.values("--metric")
    for name in names:
        if "." not in name:
            raise SetpointError(f"--metric is KIND.COLUMN, as train.loss; got {name!r}")
    every = arguments.number("--every") or 2.0
    seen = Watched(Path(arguments.positional[0]))
    if names:
        seen.columns = seen.asked = names
    seen.poll()
    if is_terminal(sys.stdout) and not (arguments.has("--json") or arguments.has("--once")):
        _follow(seen, every)
        return 0
    size = shutil.get_terminal_size((100, 40))
    emit(arguments, seen.to_json, lambda: rendered(seen, *size, colour=False))
    return 0


def _follow(seen: Watched, every: float) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)

    def text() -> Text:
        return Text.from_ansi(rendered(seen, *console.size, colour=True))

    try:
        with Live(text(), console=console, auto_refresh=False) as live:
            while seen.status == RUNNING:
                time.sleep(every)
                seen.poll()
                live.update(text(), refresh=True)
    except KeyboardInterrupt:
        print(f"the run goes on: setpoint watch {seen.path}")


def rendered(seen: Watched, columns: int, lines: int, colour: bool) -> str:
    """The view of a run, in a terminal of a size."""
    parts = [bold(_headline(seen)) if colour else _headline(seen)]
    for kind, row in seen.last.items():
        figures = [
            f"{name} {_number(row[name])}"
            for name in (SHOWN if kind == "train" else row)
            if name not in HIDDEN and isinstance(row.get(name), int | float)
        ]
        if figures:
            parts.append(_within(_plain(f"{kind}, step {row.get('step')}: "), figures, columns))
    for each in seen.troubled():
        how = "is gone" if each.is_gone else "stands still"
        where = f"rank {each.rank} on {_plain(str(each.host))} {how}"
        parts.append(f"{where} for {short_time(each.seconds)} at step {each.step}")
    known = [event for event in seen.events if event.get("event") in EVENTS]
    parts += [_event(event)[:columns] for event in known[-3:]]
    if seen.status == FAILED:
        fault = next(event for event in reversed(seen.events) if event.get("event") == "fault")
        parts.append(_plain(" ".join(f"error: {fault.get('error')}".split())[:MAX_ERROR]))
    if seen.broken:
        parts.append(f"lines that are no rows: {seen.broken:,}; `setpoint runs verify` names them")
    missing = [name for name in seen.asked if name not in seen.known]
    for name in missing if seen.known else ():
        parts.append(_plain(f"no row has {name}.{did_you_mean(name, seen.known, ' ')}"))
    curves = [name for name in seen.columns if seen.curves.get(name)]
    height = max(6, (lines - len(parts) - 12 * len(curves)) // max(1, len(curves)))
    for name in curves:
        parts += ["", _curve(seen, name, columns, min(height, 16), colour)]
    return "\n".join(parts)


def _headline(seen: Watched) -> str:
    at, status = seen.position, seen.status
    words = [f"{_plain(seen.path.name)}: {status}"]
    if at is not None:
        done = seen.done
        words.append(f"step {at.step:,}" + ("" if done is None else f" ({done:.0%})"))
        words.append(f"{short_count(at.tokens)} tokens")
    if status == RUNNING:
        if seen.seconds_left is not None:
            words.append(f"{short_time(seen.seconds_left)} left")
        if seen.silent is not None and seen.silent > 60:
            words.append(f"nothing was written for {short_time(seen.silent)}")
    return ", ".join(words)


def _event(event: Any) -> str:
    skip = ("event", "time", "data", "kind")
    more = [f"{k} {_number(v)}" for k, v in event.items() if k not in skip and _is_short(v)]
    return _plain(f"{event.get('time', '')}  {event.get('event')}  {', '.join(more[:6])}".rstrip())


def _within(start: str, figures: list[str], columns: int) -> str:
    """A line with as many figures as fit."""
    line = start + _plain(figures[0])
    for each in figures[1:]:
        if len(line) + len(each) + 2 > columns:
            break
        line += f", {_plain(each)}"
    return line


def _plain(text: str) -> str:
    """A text without control characters, which a record may hold."""
    return "".join(each if each.isprintable() else "?" for each in text)


def _is_short(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and len(value) < 60)


def _number(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _curve(seen: Watched, name: str, columns: int, height: int, colour: bool) -> str:
    """A chart where plotille is installed, else a line of blocks."""
    points = seen.curves[name]
    if len(points) > 1 and find_spec("plotille") is not None:
        return chart(seen.plot(name), max(30, columns - 24), height, colour)
    return f"{name}  {blocks([y for _, y in points], max(10, columns - len(name) - 30))}"


def blocks(values: list[float], width: int) -> str:
    """A curve in one line: means of stretches, between the least and the most."""
    count = min(width, len(values))
    cuts = [round(index * len(values) / count) for index in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts) if b > a]
    low, high = min(means), max(means)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    line = "".join(BLOCKS[round((each - low) * scale)] for each in means)
    return f"{line}  {low:.4g} to {high:.4g}"
