"""Index of the runs below a folder; read again only where files changed.

What has been read is kept in `.runs.sqlite3` in the folder, for speed alone: it may be removed at
any time, and where it cannot be written everything is read each time.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from setpoint.config import ABSENT, SetpointError, did_you_mean
from setpoint.files.atomic import read_json
from setpoint.files.lock import is_locked
from setpoint.report.goodput import goodput
from setpoint.report.status import KILLED, RUNNING, last_step, status_of
from setpoint.sweep.metrics import REDUCTIONS, MetricPath, Metrics, reduced
from setpoint.track.jsonl import read_jsonl
from setpoint.track.run_directory import CONFIG, is_run_directory

from .labels import FILE as LABELS
from .labels import read_labels

INDEX = ".runs.sqlite3"
VERSION = 1
"""Version of the cache; runs of another one are read anew."""
DEPTH = 2
"""Folders between the one that is asked for and a run: that of an experiment."""

FACTS = ("run", "status", "step", "started", "updated", "fingerprint", "goodput", "tags", "note")
"""Facts of a run that can be queried beside the fields of its configuration and its metrics."""

SHORT = {"val": "evaluation", "eval": "evaluation", "validation": "evaluation"}
"""Other words for a kind of rows."""

_DECODER = json.JSONDecoder()
_FILES = (CONFIG, "events.jsonl", "metrics.jsonl", LABELS)


@dataclass
class IndexedRun:
    """One run.

    Arguments:
        run: its path from the folder.
        facts: of `FACTS`, and `archived`.
        metrics: `KIND.COLUMN` to the values of `REDUCTIONS`.
        values: its configuration as JSON, by dotted paths.
        problems: parts that cannot be read, in words.
    """

    path: Path
    facts: dict[str, Any]
    metrics: dict[str, list[float]]
    values: str
    problems: list[str] = field(default_factory=list)

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The values of its configuration by dotted paths."""
        return json.loads(self.values)

    def get(self, name: str) -> Any:
        """A fact, a field or a metric by its name; `ABSENT` without one."""
        if name in self.facts:
            return self.facts[name]
        metric = self.metric(name)
        return self.value(name) if metric is ABSENT else metric

    def value(self, name: str) -> Any:
        """A value of the configuration by its path; `ABSENT` without one.

        It alone is decoded: a text inside of others cannot look like its key, as quotes in texts
        are escaped.
        """
        key = f"{json.dumps(name)}: "
        start = self.values.find(key)
        return ABSENT if start < 0 else _DECODER.raw_decode(self.values, start + len(key))[0]

    def metric(self, name: str) -> Any:
        """A metric, as `setpoint compare` names them; `val.loss` is that of held-out data."""
        with suppress(SetpointError):
            path = MetricPath.parse(name)
            kind = SHORT.get(path.kind or "", path.kind)
            column, place = path.column, REDUCTIONS.index(path.reduction)
            names = (f"{kind}.{column}", f"{kind}.held_out_{column}")
            for key in names[: 2 if path.kind in SHORT else 1]:
                if key in self.metrics:
                    return self.metrics[key][place]
        return ABSENT


def indexed(folder: Path) -> list[IndexedRun]:
    """The runs below a folder, those that began last at the end.

    Raises:
        SetpointError: if the folder cannot be read.
    """
    stamps = dict(_runs_in(folder))
    known = _Cache(folder)
    runs: list[IndexedRun] = []
    with closing(known):
        for path, stamp in stamps.items():
            run = known.get(path, stamp)
            if run is None:
                run = _read(folder, Path(path))
                known.put(path, stamp, run)
            # A process may hold the lock now, of which no file tells.
            if run.facts["status"] == KILLED and is_locked(run.path / ".lock"):
                run.facts["status"] = RUNNING
            runs.append(run)
        known.forget_but(stamps)
    return sorted(runs, key=lambda run: (run.facts["started"] or "", run.facts["run"]))


def known_names(runs: Sequence[IndexedRun]) -> list[str]:
    """All that some of the runs can be asked for."""
    names: dict[str, None] = dict.fromkeys(FACTS)
    for run in runs:
        names |= dict.fromkeys(run.metrics) | dict.fromkeys(run.fields)
    return list(names)


def require_name(runs: Sequence[IndexedRun], name: str) -> None:
    """Refuse a name that no run has.

    Raises:
        SetpointError: with similar names.
    """
    if runs and all(run.get(name) is ABSENT for run in runs):
        names = known_names(runs)
        meant = did_you_mean(name, names, " ")
        raise SetpointError(
            f"no run has {name!r}.{meant}\nValid: {', '.join(FACTS)}, a field of the configuration "
            f"such as optimizer.lr, or a metric such as evaluation.held_out_loss.min"
        )


class _Cache:
    """Cache of what was read, in a database that nothing depends on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows: dict[str, tuple[str, str, str, str]] = {}
        self._base: sqlite3.Connection | None = None
        for _ in range(2):
            try:
                self._open(folder / INDEX)
                return
            except sqlite3.Error:
                self.close()
                # It is damaged, or of another program's version; in a folder that cannot be
                # written neither can be mended, and nothing is kept.
                with suppress(OSError):
                    (folder / INDEX).unlink()
                self._rows.clear()

    def _open(self, path: Path) -> None:
        if path.is_symlink():  # it would lead to a database of something else
            path.unlink()
        self._base = base = sqlite3.connect(path, timeout=5)
        if base.execute("pragma user_version").fetchone()[0] != VERSION:
            base.execute("drop table if exists runs")
            base.execute(
                "create table runs (path text primary key, stamp text, facts text, metrics text, "
                "fields text)"
            )
            base.execute(f"pragma user_version = {VERSION}")
        rows = base.execute("select path, stamp, facts, metrics, fields from runs").fetchall()
        self._rows = {path: tuple(rest) for path, *rest in rows}

    def get(self, path: str, stamp: str) -> IndexedRun | None:
        row = self._rows.get(path)
        if row is None or row[0] != stamp:
            return None
        _, facts, metrics, fields = row
        return IndexedRun(Path(path), json.loads(facts), json.loads(metrics), fields)

    def put(self, path: str, stamp: str, run: IndexedRun) -> None:
        if self._base is None or run.problems:
            return
        row = (path, stamp, json.dumps(run.facts), json.dumps(run.metrics), run.values)
        with suppress(sqlite3.Error):
            self._base.execute("insert or replace into runs values (?, ?, ?, ?, ?)", row)

    def forget_but(self, paths: Mapping[str, str]) -> None:
        gone = [(path,) for path in self._rows if path not in paths]
        if self._base is not None:
            with suppress(sqlite3.Error):
                self._base.executemany("delete from runs where path = ?", gone)
                self._base.commit()

    def close(self) -> None:
        if self._base is not None:
            self._base.close()
            self._base = None


def _runs_in(folder: Path, depth: int = DEPTH) -> Iterator[tuple[str, str]]:
    """Run directories with a text that changes when one of their files does."""
    if is_run_directory(folder):
        yield str(folder), _stamp(folder)
        return
    try:
        inner = sorted(entry.path for entry in os.scandir(folder) if entry.is_dir())
    except OSError as error:
        if depth == DEPTH:
            raise SetpointError(f"{folder} cannot be read: {error.strerror}") from error
        return
    for path in inner:
        if is_run_directory(Path(path)):
            yield path, _stamp(Path(path))
        elif depth > 1:
            yield from _runs_in(Path(path), depth - 1)


def _stamp(run: Path) -> str:
    stamps: list[str] = []
    for name in _FILES:
        try:
            facts = os.stat(run / name)
            stamps.append(f"{facts.st_mtime_ns}/{facts.st_size}")
        except OSError:
            stamps.append("-")
    return " ".join(stamps)


def _read(folder: Path, path: Path) -> IndexedRun:
    problems: list[str] = []
    record: dict[str, Any] = {}
    try:
        record = read_json(path / CONFIG)
        if not isinstance(record, dict):
            raise ValueError("it holds no mapping")
    except (OSError, ValueError) as error:
        record = {}
        problems.append(f"{CONFIG} cannot be read: {error}")
    header = record.pop("setpoint", None)
    events = _rows(path / "events.jsonl", problems)
    metrics = Metrics(_rows(path / "metrics.jsonl", problems))
    try:
        labels = read_labels(path)
        said = {"tags": list(labels.tags), "note": labels.note, "archived": labels.archived}
    except SetpointError as error:
        problems.append(str(error))
        said = {"tags": [], "note": "", "archived": False}
    inner = path.relative_to(folder).as_posix() if path != folder else path.name
    rows = [*events, *metrics.rows]
    facts = {
        "run": inner,
        "status": status_of(events, lambda: False),
        "step": last_step(events, metrics.rows),
        "started": events[0].get("time") if events else None,
        "updated": max((str(row["time"]) for row in rows if "time" in row), default=None),
        "fingerprint": str(header.get("fingerprint", ""))[:8] if isinstance(header, dict) else "",
        "goodput": goodput(events, metrics.rows).share,
        **said,
    }
    reductions: dict[str, list[float]] = {}
    for name in metrics.columns():
        kind, _, column = name.partition(".")
        values = [value for _, value in metrics.curve(MetricPath(kind, column, "last"))]
        if values:  # of rows that have a step
            reductions[name] = [reduced(values, reduction) for reduction in REDUCTIONS]
    fields = json.dumps(dict(_flat(record)))
    return IndexedRun(path, facts, reductions, fields, problems)


def _rows(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        return read_jsonl(path, problems)
    except SetpointError as error:
        problems.append(str(error))
        return []


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Nested values by dotted paths; a list of plain values is one, others go by their index."""
    if isinstance(value, dict):
        if "type" in value:
            yield path, value["type"]
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for number, inner in enumerate(value):
            yield from _flat(inner, f"{path}.{number}")
    else:
        yield path, value
