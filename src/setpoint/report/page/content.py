"""The data of a report on runs, as plain JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from setpoint.config import DERIVED
from setpoint.report.goodput import goodput, status_of, timestamp
from setpoint.report.page.panels import (
    RunObjective,
    curves_of,
    knobs_of,
    panels,
    parts_for,
    sweep_of,
)
from setpoint.report.page.run_data import EVENTS, Column, RunData, bounded, flat, json_number
from setpoint.version import VERSION

WHERE = frozenset(("name", "experiment", "workspace"))
"""Fields of the path of a run, which is in its label."""
MANY = 50
"""Maximum number of runs with all metrics; with more, only the first panels are drawn."""
ITEMS = 200
"""Maximum number of entries of a list or object."""
DEPTH = 8
ROWS = 500
"""Maximum number of differences."""
CHANGING = ("time", "data.", "command", "directory", "world.rank", "python.executable", "unread")
"""Environment facts that always differ."""


def document(
    runs: Sequence[RunData],
    title: str,
    objective: RunObjective | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The data of the page; without an objective one is chosen."""
    notes = list(notes)
    drawn_panels = panels(runs)
    if len(runs) > MANY:
        kept = [panel for panel in drawn_panels if panel["main"]]
        if gone := len(drawn_panels) - len(kept):
            notes.append(f"{gone} further metrics of {len(runs)} runs are omitted")
        drawn_panels = kept
        drawn = {name for panel in drawn_panels for name in panel["columns"]}
    else:
        drawn = {name for run in runs for name in run.columns}
    shared = _Shared()
    parts = parts_for(runs)
    events = max(20, 10 * EVENTS // max(10, len(runs)))
    differing = list(_differences(runs))
    if len(differing) > ROWS:
        notes.append(f"{len(differing) - ROWS} further differences are omitted")
    return {
        "title": title,
        "version": VERSION,
        "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "runs": [_run(run, shared, drawn, parts, events) for run in runs],
        "panels": drawn_panels,
        "settings": shared.settings,
        "environments": shared.environments,
        "differences": differing[:ROWS],
        "environment_differences": list(_environment_differences(runs))[:ROWS],
        "sweep": sweep_of(runs, knobs_of(_fields(runs)), objective),
        "notes": notes,
    }


class _Shared:
    """Settings and environments shared between runs."""

    def __init__(self) -> None:
        self.settings: list[list[Any]] = []
        self.environments: list[Any] = []
        self._places: dict[str, int] = {}

    def setting(self, row: list[Any]) -> int:
        return self._place("setting", row, self.settings)

    def environment(self, value: Mapping[str, Any]) -> int:
        kept = {key: item for key, item in value.items() if key != "time"}
        return self._place("environment", pruned(kept), self.environments)

    def _place(self, kind: str, value: Any, into: list[Any]) -> int:
        key = kind + json.dumps(value)
        if key not in self._places:
            self._places[key] = len(into)
            into.append(value)
        return self._places[key]


def _run(
    run: RunData, shared: _Shared, drawn: set[str], parts: int, most_events: int
) -> dict[str, Any]:
    time = _goodput(run)
    kept = RunData(**{**vars(run), "columns": {n: c for n, c in run.columns.items() if n in drawn}})
    half = most_events // 2
    events = run.events
    if len(events) > most_events:
        events = [*events[:half], *events[-half:]]
    return {
        "label": bounded(run.label),
        "path": bounded(str(run.path)),
        "status": page_status(run),
        "facts": [[name, value] for name, value in _facts(run) if value is not None],
        "tags": [bounded(str(tag)) for tag in _list(run.labels.get("tags"))[:20]],
        "note": bounded(str(run.labels.get("note") or "")),
        "problems": [bounded(text) for text in run.problems],
        "cautions": list(_cautions(run)),
        **curves_of(kept, parts),
        "events": [_event(event) for event in events],
        "event_count": run.event_count,
        "goodput": time,
        "parts": list(_parts(run)),
        "shares": list(_shares(run)),
        "samples": [pruned(row) for row in run.texts],
        "settings": [shared.setting(_setting(path, entry)) for path, entry in run.settings.items()],
        "environment": shared.environment(run.environment),
    }


def page_status(run: RunData) -> str:
    """The status of a run; unknown without events."""
    is_running = run.is_running
    return status_of(run.events, lambda: is_running) if run.events or is_running else "unknown"


def last(column: Column | None) -> float | None:
    """The last value of a column."""
    return column.values[-1] if column is not None and column.values else None


def _facts(run: RunData) -> Iterator[tuple[str, Any]]:
    """The figures at the top of the page."""

    def largest(xs: Iterable[float]) -> float | None:
        known = [x for x in xs if math.isfinite(x)]
        return max(known) if known else None

    yield "step", json_number(largest(run.steps))
    yield "tokens", json_number(largest(run.tokens))
    yield "training loss", json_number(last(run.columns.get("train.mean_loss")))
    for name, column in run.columns.items():
        if name.startswith("evaluation.") and name.endswith("_loss"):
            known = [value for value in column.values if math.isfinite(value)]
            word = name.removeprefix("evaluation.").removesuffix("_loss").replace("_", "-")
            yield f"{word} loss", json_number(last(column))
            stem = name.removesuffix("_loss")
            counts = [
                last(run.columns.get(f"{stem}_{c}")) for c in ("sequences", "total_sequences")
            ]
            if None not in counts:
                yield f"{word} sequences", " of ".join(f"{count:,.0f}" for count in counts)
            if len(known) > 1:
                yield f"best {word} loss", json_number(min(known))
    yield "training time", json_number(largest(run.seconds) or None)
    speed = run.columns.get("train.tokens_per_second")
    if speed is not None and speed.values:
        yield "tokens/s (median)", json_number(sorted(speed.values)[len(speed.values) // 2])
    fingerprint = run.header.get("fingerprint")
    yield "fingerprint", fingerprint[:8] if isinstance(fingerprint, str) else None


def _cautions(run: RunData) -> Iterator[list[str]]:
    """Field, message and code of the distinct cautions of a run."""
    texts: set[str] = set()
    for event in run.events:
        for caution in _list(event.get("cautions"))[:ITEMS]:
            if isinstance(caution, dict):
                row = [bounded(str(caution.get(key) or "")) for key in ("path", "message", "code")]
                if (text := json.dumps(row)) not in texts:
                    texts.add(text)
                    yield row


def _event(event: Mapping[str, Any]) -> dict[str, Any]:
    details = {key: value for key, value in event.items() if key not in ("time", "event", "step")}
    step = event.get("step")
    return {
        "time": timestamp(event.get("time")),
        "event": bounded(str(event.get("event"))),
        "step": step if isinstance(step, int | float) and abs(step) < 2**53 else None,
        "details": pruned(details),
    }


def _shares(run: RunData) -> Iterator[dict[str, Any]]:
    """Sequences and tokens of each data source, over the whole run."""
    prefix = "train.sequences_"
    for name, column in run.columns.items():
        if name.startswith(prefix):
            source = name.removeprefix(prefix)
            targets = run.columns.get(f"train.target_tokens_{source}")
            yield {
                "source": source,
                "sequences": json_number(math.fsum(_finite(column.values))),
                "targets": None if targets is None
                else json_number(math.fsum(_finite(targets.values))),
                "cross_entropy": json_number(
                    last(run.columns.get(f"train.cross_entropy_{source}"))
                ),
            }  # fmt: skip


def _parts(run: RunData) -> Iterator[list[Any]]:
    """Seconds of the parts of steps over the whole run, largest first."""
    prefix = "train.seconds_"
    sums = {
        name.removeprefix(prefix): math.fsum(_finite(column.values))
        for name, column in run.columns.items()
        if name.startswith(prefix)
    }
    for name, seconds in sorted(sums.items(), key=lambda part: -part[1]):
        yield [name, json_number(seconds)]


def _goodput(run: RunData) -> dict[str, Any] | None:
    """The parts of a run's time; None if not recorded."""
    try:
        spent = goodput(run.events, run.times)
        parts = [[name, json_number(seconds)] for name, seconds in spent.parts.items()]
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        run.problems.append(f"events.jsonl: goodput is not known: {bounded(str(error))}")
        return None
    if spent.share is None or not parts:
        return None
    return {
        "wall": json_number(spent.wall),
        "share": json_number(spent.share),
        "sessions": spent.sessions,
        "lost_steps": spent.lost_steps,
        "parts": parts,
    }


def _finite(values: Iterable[float]) -> Iterator[float]:
    return (value for value in values if math.isfinite(value))


def shown(value: Any) -> str:
    """A value of the configuration as text."""
    if isinstance(value, str):
        return bounded(value)
    try:
        return bounded(json.dumps(value, ensure_ascii=False))
    except (ValueError, TypeError, RecursionError):
        return bounded(repr(value))


def _setting(path: str, entry: Mapping[str, Any]) -> list[Any]:
    """Path, value, role, and the layers that set the field with their origins, the winner last."""
    layers = [
        [shown(layer.get("layer")), shown(layer.get("origin")), shown(layer.get("value"))]
        for layer in _list(entry.get("layers"))[:ITEMS]
        if isinstance(layer, dict)
    ]
    return [bounded(path), shown(entry["value"]), str(entry.get("role") or "")[:20], layers]


def _is_derived(entry: Mapping[str, Any]) -> bool:
    layers = _list(entry.get("layers"))
    winner = layers[-1] if layers else None
    return isinstance(winner, dict) and str(winner.get("origin", "")).startswith(DERIVED)


def _fields(runs: Sequence[RunData]) -> dict[str, list[Mapping[str, Any] | None]]:
    """Entries of differing fields, except those derived in all runs."""
    paths = dict.fromkeys(path for run in runs for path in run.settings)
    differing: dict[str, list[Mapping[str, Any] | None]] = {}
    for path in paths:
        entries = [run.settings.get(path) for run in runs if run.settings]
        texts = {None if entry is None else shown(entry["value"]) for entry in entries}
        present = [entry for entry in entries if entry is not None]
        if path not in WHERE and len(texts) > 1 and not all(map(_is_derived, present)):
            differing[path] = [run.settings.get(path) for run in runs]
    return differing


def _differences(runs: Sequence[RunData]) -> Iterator[dict[str, Any]]:
    for path, entries in _fields(runs).items():
        cells = [None if entry is None else _setting(path, entry) for entry in entries]
        yield {
            "path": bounded(path),
            "role": next(cell[2] for cell in cells if cell is not None),
            "cells": [
                None if cell is None else [cell[1], cell[3][-1][1] if cell[3] else ""]
                for cell in cells
            ],
        }


def _environment_differences(runs: Sequence[RunData]) -> Iterator[dict[str, Any]]:
    if len(runs) < 2:
        return
    tables = [
        {path: shown(value) for path, value in flat(run.environment)
         if not path.startswith(CHANGING)}
        for run in runs
    ]  # fmt: skip
    for path in dict.fromkeys(path for table in tables for path in table):
        texts = [table.get(path) for table, run in zip(tables, runs, strict=True)]
        known = {text for text, run in zip(texts, runs, strict=True) if run.environment}
        if len(known) > 1:
            cells = [None if text is None else [text, ""] for text in texts]
            yield {"path": bounded(path), "role": "", "cells": cells}


def pruned(value: Any, depth: int = DEPTH) -> Any:
    """Data pruned to a readable size and depth."""
    if isinstance(value, str):
        return bounded(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return json_number(value)
    if depth == 0:
        return "..."
    if isinstance(value, dict):
        kept = {
            bounded(str(key)): pruned(item, depth - 1) for key, item in list(value.items())[:2000]
        }
        return kept | ({"...": f"{len(value) - 2000} more"} if len(value) > 2000 else {})
    if isinstance(value, list | tuple):
        items = [pruned(item, depth - 1) for item in value[:ITEMS]]
        return items + ([f"... {len(value) - ITEMS} more"] if len(value) > ITEMS else [])
    return bounded(str(value))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
