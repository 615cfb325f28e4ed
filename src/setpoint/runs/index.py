"""Index of the runs below a folder.

It is cached in `.runs.sqlite3` in the folder, and only changed runs are read again. The file may be
deleted at any time; if it cannot be written, everything is read each time.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from setpoint.checkpoint.places import is_point
from setpoint.config import ABSENT, CONFIG, SetpointError, did_you_mean
from setpoint.files.atomic import read_json, write_json
from setpoint.files.lock import is_locked
from setpoint.report.goodput import KILLED, RUNNING, goodput, last_step, status_of
from setpoint.report.page.run_data import flat
from setpoint.sweep.run_metrics import REDUCTIONS, MetricPath, RunMetrics, reduced
from setpoint.track.jsonl import read_jsonl
from setpoint.track.run_directory import is_run_directory

INDEX = ".runs.sqlite3"
DEPTH = 2
"""Maximum depth of a run below the folder, which allows for an experiment."""

FACTS = ("run", "status", "step", "started", "updated", "fingerprint", "goodput", "tags", "note")
"""Facts of a run that can be queried, besides configuration fields and metrics."""

LABELS = "labels.json"
"""Name in the run directory."""

_DECODER = json.JSONDecoder()
FILES = (CONFIG, "events.jsonl", "metrics.jsonl", LABELS)


@dataclass
class IndexedRun:
    """One run.

    Arguments:
        run: path of the run relative to the folder.
        facts: values of `FACTS`, and `archived`.
        metrics: values of `REDUCTIONS` by `KIND.COLUMN`.
        values: configuration of the run as JSON, by dotted path.
        problems: descriptions of unreadable parts.
    """

    path: Path
    facts: dict[str, Any]
    metrics: dict[str, list[float]]
    values: str
    problems: list[str] = field(default_factory=list)

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The values of the run's configuration, by dotted path."""
        return json.loads(self.values)

    def get(self, name: str) -> Any:
        """A fact, metric or field by name; `ABSENT` if there is none."""
        if name in self.facts:
            return self.facts[name]
        if (metric := self.metric(name)) is not ABSENT:
            return metric
        # Only this value is decoded, so thousands of runs are fast. Other texts cannot contain its
        # key, since quotes in texts are escaped.
        key = f"{json.dumps(name)}: "
        start = self.values.find(key)
        return ABSENT if start < 0 else _DECODER.raw_decode(self.values, start + len(key))[0]

    def metric(self, name: str) -> Any:
        """A metric, named as in `setpoint compare`; `val.loss` is that of held-out data."""
        with suppress(SetpointError):
            path = MetricPath.parse(name)
            if values := self.metrics.get(f"{path.kind}.{path.column}"):
                return values[REDUCTIONS.index(path.reduction)]
        return ABSENT


def indexed(folder: str | os.PathLike[str]) -> list[IndexedRun]:
    """The runs below a folder, by start time.

    Raises:
        SetpointError: the folder cannot be read.
    """
    folder = Path(folder)
    stamps = dict(_runs_in(folder))
    cached = _load_cache(folder)
    runs: list[IndexedRun] = []
    changed: list[tuple[str, ...]] = []
    for path, stamp in stamps.items():
        if path in cached and cached[path][0] == stamp:
            _, facts, metrics, fields = cached[path]
            run = IndexedRun(Path(path), json.loads(facts), json.loads(metrics), fields)
        else:
            run = _read(folder, Path(path))
            if not run.problems:
                row = json.dumps(run.facts), json.dumps(run.metrics), run.values
                changed.append((path, stamp, *row))
        # A process may hold the lock now, which no file shows.
        if run.facts["status"] == KILLED and is_locked(run.path / ".lock"):
            run.facts["status"] = RUNNING
        runs.append(run)
    removed = cached.keys() - stamps.keys()
    if changed or removed:
        _save_cache(folder, changed, removed)
    return sorted(runs, key=lambda run: (run.facts["started"] or "", run.facts["run"]))


def require_name(runs: Sequence[IndexedRun], name: str) -> None:
    """Refuse a name that no run has.

    Raises:
        SetpointError: suggests similar names.
    """
    if runs and all(run.get(name) is ABSENT for run in runs):
        names = dict.fromkeys(FACTS)
        for run in runs:
            names |= dict.fromkeys(run.metrics) | dict.fromkeys(run.fields)
        hint = did_you_mean(name, names, " ")
        raise SetpointError(
            f"no run has {name!r}.{hint}\nValid: {', '.join(FACTS)}, a field of the configuration "
            f"such as optimizer.lr, or a metric such as evaluation.held_out_loss.min"
        )


def _open_cache(folder: Path) -> sqlite3.Connection:
    path = folder / INDEX
    if path.is_symlink():  # it could lead to another kind of database
        path.unlink()
    cache = sqlite3.connect(path, timeout=5)
    cache.execute(
        "create table if not exists runs (path text primary key, stamp text, facts text, "
        "metrics text, fields text)"
    )
    return cache


def _load_cache(folder: Path) -> dict[str, tuple[str, str, str, str]]:
    """The cached rows by path; a damaged cache is removed."""
    try:
        with closing(_open_cache(folder)) as cache:
            rows = cache.execute("select path, stamp, facts, metrics, fields from runs").fetchall()
        return {path: tuple(row) for path, *row in rows}
    except sqlite3.Error:
        with suppress(OSError):
            (folder / INDEX).unlink()
        return {}


def _save_cache(folder: Path, rows: Sequence[tuple[str, ...]], removed: Iterable[str]) -> None:
    with suppress(sqlite3.Error), closing(_open_cache(folder)) as cache, cache:
        cache.executemany("insert or replace into runs values (?, ?, ?, ?, ?)", rows)
        cache.executemany("delete from runs where path = ?", [(path,) for path in removed])


def _runs_in(folder: Path, depth: int = DEPTH) -> Iterator[tuple[str, str]]:
    """Run directories, each with a stamp that changes with its files."""
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
        if is_point(path):  # the record of a sweep point, whose run is elsewhere
            continue
        if is_run_directory(Path(path)):
            yield path, _stamp(Path(path))
        elif depth > 1:
            yield from _runs_in(Path(path), depth - 1)


def _stamp(run: Path) -> str:
    stamps: list[str] = []
    for name in FILES:
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
            raise ValueError("it is not a mapping")
    except (OSError, ValueError) as error:
        record = {}
        problems.append(f"{CONFIG} cannot be read: {error}")
    header = record.pop("setpoint", None)
    events = _rows(path / "events.jsonl", problems)
    metrics = RunMetrics(_rows(path / "metrics.jsonl", problems))
    try:
        labels = read_labels(path)
        label_facts = {"tags": list(labels.tags), "note": labels.note, "archived": labels.archived}
    except SetpointError as error:
        problems.append(str(error))
        label_facts = {"tags": [], "note": "", "archived": False}
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
        **label_facts,
    }
    reductions: dict[str, list[float]] = {}
    for name in metrics.columns():
        kind, _, column = name.partition(".")
        values = [value for _, value in metrics.curve(MetricPath(kind, column, "last"))]
        if values:  # from rows with a step
            reductions[name] = [reduced(values, reduction) for reduction in REDUCTIONS]
    config = dict(flat(record))
    config |= {p.removesuffix(".type"): v for p, v in config.items() if p.endswith(".type")}
    return IndexedRun(path, facts, reductions, json.dumps(config), problems)


def _rows(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        return read_jsonl(path, problems)
    except SetpointError as error:
        problems.append(str(error))
        return []


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of one run; lists omit archived ones by default."""

    tags: tuple[str, ...] = ()
    note: str = ""
    archived: bool = False


def read_labels(run: Path) -> Labels:
    """Read the labels of a run; empty if there are none.

    Raises:
        SetpointError: the file was not written by `write_labels`.
    """
    path = run / LABELS
    try:
        labels = read_json(path)
        if not isinstance(labels, dict) or not isinstance(labels["tags"], list):
            raise ValueError("it is not what `setpoint runs tag` writes")
        return Labels(
            tuple(map(str, labels["tags"])), str(labels["note"]), bool(labels["archived"])
        )
    except FileNotFoundError:
        return Labels()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetpointError(
            f"{path} cannot be read: {error}; remove it to start with no tags"
        ) from error


def write_labels(run: Path, labels: Labels) -> None:
    """Write the labels atomically.

    Raises:
        RunError: the labels cannot be written.
    """
    write_json(run / LABELS, asdict(labels))
