"""The data of a run directory for a report, limited in size."""

from __future__ import annotations

import json
import os
import stat
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite, isnan, nan
from pathlib import Path
from typing import Any

from setpoint.config import CONFIG, ORIGINS
from setpoint.files.atomic import complete_lines, row_of
from setpoint.track.config import ENVIRONMENT

FILE_BYTES = 64 * 2**20
"""Of a JSON file."""
LOG_BYTES = 2**30
"""Maximum bytes read of a file of rows."""
LINE_BYTES = 4 * 2**20
COLUMNS = 2000
"""Maximum number of metric columns of a run."""
PARTS = 64
"""Maximum number of list items turned into columns, such as the load of experts."""
EVENTS = 2000
"""Maximum number of events of a run, half from each end."""
SAMPLES = 200
TEXT = 4000
"""Maximum characters of a text."""
SETTINGS = 20_000
"""Maximum number of configuration fields of a run."""
MAX_DIGITS = 40
"""Digits of an int beyond the precision of JavaScript."""

SAMPLE = "sample"
"""Kind of the rows with generated text."""
TIMES = ("kind", "time", "step", "seconds", "data_wait", "evaluation_seconds")
"""Columns of rows for goodput."""
NOT_FINITE = {"NaN": nan, "Infinity": float("inf"), "-Infinity": float("-inf")}
"""Their names in rows of `metrics.jsonl`."""


@dataclass
class Column:
    """A metric: its values and their rows."""

    rows: array[int] = field(default_factory=lambda: array("I"))
    values: array[float] = field(default_factory=lambda: array("d"))


@dataclass
class RunData:
    """The readable data of a run.

    Arguments:
        settings: field path to value, role, and layers with their origins.
        steps, tokens, seconds: of each row of metrics; NaN if missing.
        columns: the metrics by `KIND.COLUMN`.
        texts: the rows of the kind `SAMPLE`.
        times: the parts of each row about time spent.
        event_count: total number of events, of which `events` may be a part.
        problems: descriptions of unreadable parts.
    """

    label: str
    path: Path
    is_running: bool = False
    header: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    steps: array[float] = field(default_factory=lambda: array("d"))
    tokens: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    columns: dict[str, Column] = field(default_factory=dict)
    texts: list[dict[str, Any]] = field(default_factory=list)
    times: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    event_count: int = 0
    environment: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def read_run(path: Path, label: str, is_running: bool = False) -> RunData:
    """Read a run directory; damaged, too large or irregular files are reported as problems.

    Code named by the record is not imported, and links are not followed.
    """
    run = RunData(label, path, is_running)
    config = _object(run, CONFIG)
    header = config.pop("setpoint", None)
    run.header = header if isinstance(header, dict) else {}
    run.settings = _settings(run, config)
    run.environment = _object(run, ENVIRONMENT)
    run.labels = _object(run, "labels.json", required=False)
    _read_metrics(run)
    _read_events(run)
    return run


def bounded(text: str) -> str:
    """A text truncated to the maximum length."""
    return text if len(text) <= TEXT else f"{text[:TEXT]} ... ({len(text) - TEXT} more characters)"


def _open(path: Path) -> Any:
    """Open a regular file, but no link, and no pipe, which would block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("not a plain file")
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def _object(run: RunData, name: str, required: bool = True) -> dict[str, Any]:
    """A JSON object; empty, with an entry in the problems, if it cannot be read."""
    try:
        with _open(run.path / name) as file:
            text = file.read(FILE_BYTES + 1)
        if len(text) > FILE_BYTES:
            raise ValueError(f"larger than {FILE_BYTES >> 20} MiB")
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("not an object")
        return content
    except FileNotFoundError:
        if required:
            run.problems.append(f"{name} is missing")
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        run.problems.append(f"{name} cannot be read: {bounded(reason)}")
    return {}


def _settings(run: RunData, config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The fields with their origins, if recorded."""
    fields = {
        path: entry
        for path, entry in _object(run, ORIGINS).items()
        if isinstance(entry, dict) and "value" in entry
    }
    if not fields:
        fields = {path: {"value": value} for path, value in flat(config) if path}
    if len(fields) > SETTINGS:
        run.problems.append(f"{len(fields) - SETTINGS} fields of the configuration are omitted")
    return dict(list(fields.items())[:SETTINGS])


def flat(value: Any, path: str = "", depth: int = 12) -> Iterator[tuple[str, Any]]:
    """Nested values by dotted path; a list of plain values counts as one value."""
    inner: Any = None
    if isinstance(value, dict) and value:
        inner = value.items()
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        inner = enumerate(value)
    if inner is None or not depth:
        yield path, value
        return
    for key, item in inner:
        yield from flat(item, f"{path}.{key}" if path else str(key), depth - 1)


def _rows(run: RunData, name: str) -> Iterator[dict[str, Any]]:
    """The rows of a file; damaged ones are counted, an incomplete last line is skipped."""
    broken, first = 0, 0
    try:
        with _open(run.path / name) as file:
            for number, line in enumerate(complete_lines(file, LINE_BYTES + 1), 1):
                if (row := row_of(line)) is not None:
                    yield row
                else:
                    broken, first = broken + 1, first or number
                if file.tell() > LOG_BYTES:
                    run.problems.append(f"{name}: only the first {LOG_BYTES >> 20} MiB are read")
                    break
    except FileNotFoundError:
        run.problems.append(f"{name} is missing")
    except OSError as error:
        run.problems.append(f"{name} cannot be read: {error.strerror or error}")
    if broken:
        lines = "1 line is not a valid row" if broken == 1 else f"{broken} lines are not valid rows"
        run.problems.append(f"{name}: {lines}, omitted; the first is line {first}")


def json_number(value: float | None) -> Any:
    """A number for JSON that is exact in JavaScript; non-finite numbers become text."""
    if value is None:
        return None
    if isinstance(value, int):
        return value if abs(value) < 2**53 else str(value)[:MAX_DIGITS]
    if isfinite(value):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"


def number(value: Any) -> float | None:
    """A number in a row as a float; None for anything else."""
    if isinstance(value, str):
        return NOT_FINITE.get(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _read_metrics(run: RunData) -> None:
    dropped: set[str] = set()
    samples, last = 0, [nan, nan, 0.0]
    for row_number, row in enumerate(_rows(run, "metrics.jsonl")):
        kind = row.get("kind")
        prefix = f"{kind[:100]}." if isinstance(kind, str) else ""
        # Missing values keep their previous value: evaluations have no seconds.
        for place, (name, xs) in enumerate(
            (("step", run.steps), ("tokens", run.tokens), ("seconds", run.seconds))
        ):
            x = number(row.get(name))
            last[place] = last[place] if x is None else x
            xs.append(last[place])
        run.times.append({key: row[key] for key in TIMES if key in row})
        if kind == SAMPLE:
            samples += 1
            if len(run.texts) < SAMPLES:
                run.texts.append({key: _cut(value) for key, value in row.items()})
            continue
        for name, value in row.items():
            items = value if isinstance(value, list) else None
            for place, item in enumerate([value] if items is None else items[:PARTS]):
                y = number(item)
                if y is None:
                    continue
                key = f"{prefix}{name[:200]}" + ("" if items is None else f".{place}")
                column = run.columns.get(key)
                if column is None:
                    if len(run.columns) >= COLUMNS:
                        dropped.add(key[:100]) if len(dropped) < COLUMNS else None
                        continue
                    column = run.columns[key] = Column()
                column.rows.append(row_number)
                column.values.append(y)
    if dropped:
        run.problems.append(
            f"metrics.jsonl: {len(dropped)} or more columns beyond {COLUMNS} are left out"
        )
    if samples > SAMPLES:
        run.problems.append(f"metrics.jsonl: {samples - SAMPLES} samples of text are omitted")


def _read_events(run: RunData) -> None:
    late: list[dict[str, Any]] = []
    for event in _rows(run, "events.jsonl"):
        run.event_count += 1
        if len(run.events) < EVENTS // 2:
            run.events.append(event)
        else:
            late.append(event)
            if len(late) > EVENTS:
                del late[: EVENTS // 2]
    run.events += late[-EVENTS // 2 :]
    if (gone := run.event_count - len(run.events)) > 0:
        run.problems.append(f"events.jsonl: {gone} events between the first and the last ones are "
                            f"omitted")  # fmt: skip


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return bounded(value)
    return value if isinstance(value, bool | int | float) or value is None else bounded(str(value))
