"""The points of a sweep: their folders, the states of their runs, and `sweep.json`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from setpoint.checkpoint.folder import list_checkpoints
from setpoint.checkpoint.places import POINT_FILE
from setpoint.config import CONFIG, HEADER, Config, RunError, SetpointError, record_files, to_plain
from setpoint.files.atomic import read_json, write_json, write_text
from setpoint.files.lock import RunLock
from setpoint.report.goodput import FINISHED, status_of
from setpoint.sweep.points import DuplicatePoint, ResolvedPoint, mapping_of
from setpoint.sweep.run_metrics import RunMetrics
from setpoint.track.jsonl import plain_numbers, read_jsonl
from setpoint.track.run_directory import links_out_of
from setpoint.train.config import Job
from setpoint.train.contract import check_contract
from setpoint.train.run_name import run_directory_of

SWEEP_FILE = "sweep.json"
LOCK = ".sweep.lock"
SCHEMA = 1
POINTS = "points"
"""The folder of the points in the folder of a sweep."""
LOG = "output.log"
"""The output of a point's process, over all its starts."""
EVENTS = "events.jsonl"
WAITING = "waiting"


class RunState(NamedTuple):
    """The state of a run before it is started.

    Arguments:
        finished: True if the run ended, and the job has the same duration.
        step: step of the newest save; 0 if there is none.
    """

    started: bool
    finished: bool
    step: int


def run_state(path: Path, job: Job) -> RunState:
    """Read the state of a run from its directory.

    Raises:
        SetpointError: the existing run cannot be resumed under this configuration.
    """
    if not (path / CONFIG).is_file():
        return RunState(False, False, 0)
    check_contract(str(path), job)
    events = read_jsonl(path / EVENTS) if (path / EVENTS).exists() else []
    saves = [event for event in events if event.get("event") in ("save", "end")]
    step = saves[-1].get("step") if saves else 0
    finished = status_of(events, lambda: False) == FINISHED and _has_same_duration(path, job)
    return RunState(True, finished, step if type(step) is int else 0)


def _has_same_duration(path: Path, job: Job) -> bool:
    """True if the recorded duration equals that of the job; a longer one is resumed."""
    try:
        recorded: Any = json.loads((path / CONFIG).read_text(encoding="utf-8"))
        return recorded["duration"] == to_plain(job)["duration"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetpointError(f"{path / CONFIG}: the record cannot be read: {error}") from None


class SweepTask:
    """A point of a sweep: its planned action, status and result.

    Its run directory is by default the usual one of a training job.
    """

    def __init__(self, point: ResolvedPoint[Any], folder: Path, run: Path | None = None) -> None:
        self.point = point
        self.name = point.name
        self.job: Any = point.config
        self.run = run or Path(run_directory_of(point.config, point.fingerprint))
        self.folder = folder / POINTS / point.name
        self.log = self.folder / LOG
        self.status = WAITING
        self.exit_status: int | None = None
        self.seconds: float | None = None
        self.reason = ""
        self.state = RunState(False, False, 0)
        self.metrics: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"SweepTask({self.name!r}, {self.status}, run={str(self.run)!r})"

    def read_state(self) -> None:
        """Read the state of the task's run.

        Raises:
            SetpointError: the existing run cannot be resumed.
        """
        self.state = run_state(self.run, self.job)
        if self.state.finished:
            self.status = FINISHED
            self.read_metrics()

    def read_metrics(self) -> None:
        """Read the last metrics of the run; damage is recorded as the reason."""
        try:
            metrics = RunMetrics.read(self.run)
            self.metrics, self.reason = metrics.last(), "; ".join(metrics.damaged[:1])
        except SetpointError as error:
            self.metrics, self.reason = {}, str(error)

    def saved_text(self) -> str:
        """The saved step of a stopped run, as text."""
        newest = max(list_checkpoints(self.run / "checkpoints"), default=0)
        if newest:
            return f"saved at step {newest}; the same command resumes"
        return "nothing saved yet; the same command starts it over"

    def plan(self) -> str:
        """The planned action."""
        if self.state.finished:
            return "skip: finished"
        if self.state.step:
            return f"resume at step {self.state.step}"
        return "start again" if self.state.started else "start"

    def to_json(self) -> dict[str, Any]:
        """The point as an entry of `sweep.json`."""
        return {
            "name": self.name,
            "settings": dict(mapping_of(self.point.point)),
            "fingerprint": self.point.fingerprint,
            "run": str(self.run),
            "status": self.status,
            "exit_status": self.exit_status,
            "seconds": None if self.seconds is None else round(self.seconds, 3),
            "reason": self.reason,
            "log": str(self.log),
            "metrics": plain_numbers(self.metrics),
        }


def write_point(folder: Path, name: str, job: Config, run: str) -> list[str]:
    """Write the folder of a point, a source for `setpoint train`: a record with all origins.

    Returns:
        the modules that the configuration needs.

    Raises:
        RunError: the folder cannot be written.
    """
    _make_folder(folder)
    files = record_files(job)
    # Written first: without it the folder would pass for a run directory.
    write_json(folder / POINT_FILE, {"name": name, "run": run})
    for file in sorted(files, key=lambda file: file == CONFIG):
        write_text(folder / file, files[file])
    return list(json.loads(files[CONFIG])[HEADER]["modules"])


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot be created: {error.strerror}") from error


class SweepRecord:
    """`sweep.json`: the points of a sweep and their results, written only by this process.

    The record keeps the points of earlier sweeps in the same folder as long as their runs exist.

    Arguments:
        duplicates: the omitted points.

    Raises:
        SetpointError: another process is running a sweep there.
        RunError: the folder cannot be written.
    """

    def __init__(self, folder: Path, source: str, duplicates: Sequence[DuplicatePoint]) -> None:
        self.path = folder / SWEEP_FILE
        self._source = source
        self._duplicates = duplicates
        _make_folder(folder)
        _refuse_linked_points(folder)
        try:
            self._lock = RunLock(folder / LOCK)
        except RunError:
            raise
        except SetpointError as error:
            raise SetpointError(
                f"{folder}: a sweep is already running here: {error}; --experiment NAME gives this "
                f"one its own folder"
            ) from None
        self._before = read_record_of(folder) if self.path.exists() else []

    def recall(self, tasks: Sequence[SweepTask]) -> None:
        """Restore the times of finished points from the earlier record."""
        known = {point["fingerprint"]: point for point in self._before}
        for task in tasks:
            point = known.get(task.point.fingerprint)
            if point is not None and task.status == FINISHED == point["status"]:
                task.seconds, task.exit_status = point.get("seconds"), point.get("exit_status")

    def write(self, tasks: Sequence[SweepTask], **details: Any) -> dict[str, Any]:
        """Replace the record; `details` are further entries, such as the best trial of a search.

        Raises:
            RunError: the record cannot be written; the previous one is unchanged.
        """
        present = {task.point.fingerprint for task in tasks}
        earlier = [point for point in self._before if point["fingerprint"] not in present]
        record = {
            "schema": SCHEMA,
            "source": self._source,
            "points": [task.to_json() for task in tasks],
            "earlier": [point for point in earlier if Path(point["run"]).is_dir()],
            "duplicates": [point.to_json() for point in self._duplicates],
            **details,
        }
        write_json(self.path, record)
        return record

    def close(self) -> None:
        """Release the lock of the folder."""
        self._lock.release()


def _refuse_linked_points(folder: Path) -> None:
    """Refuse points that would be written elsewhere, since the folder may come from others.

    Raises:
        SetpointError: names the first link.
    """
    try:
        link = next(links_out_of(folder, only=POINTS), None)
    except OSError as error:
        raise SetpointError(f"{error.filename} cannot be read: {error.strerror}") from error
    if link is not None:
        raise SetpointError(
            f"{link} is a link to {os.path.realpath(link)}, but a sweep writes only to its own "
            f"folders.\nValid: a real folder; to keep sweeps on another disk, set "
            f"workspace to a folder there, or link {folder} as a whole"
        )


def read_record_of(folder: Path) -> list[dict[str, Any]]:
    """Read all points of the `sweep.json` in a folder, with those of earlier sweeps last.

    Raises:
        SetpointError: the record cannot be read.
    """
    path = folder / SWEEP_FILE
    try:
        record = read_json(path)
        if record["schema"] != SCHEMA:
            raise ValueError(f"it has schema {record['schema']}, not {SCHEMA}")
        points = [*record["points"], *record["earlier"]]
        for point in points:
            _ = [str(point[key]) for key in ("name", "run", "status", "fingerprint", "log")]
        return points
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else error
        raise SetpointError(f"{path}: the record of the sweep cannot be read: {reason}") from None
