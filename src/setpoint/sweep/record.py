"""`sweep.json`: the points of a sweep, and what came of each; replaced in one step each time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from setpoint.config import SetpointError
from setpoint.files.atomic import read_json, write_json
from setpoint.files.lock import RunLock
from setpoint.report.status import FINISHED
from setpoint.sweep_space.points import Duplicate
from setpoint.track.run_directory import links_out_of

from .task import POINTS, Task

NAME = "sweep.json"
LOCK = ".sweep.lock"
SCHEMA = 1


class SweepRecord:
    """The record in the folder of a sweep, which this process alone writes.

    Points of earlier sweeps in the same folder stay in it, as long as their runs do.

    Arguments:
        duplicates: the points that were left out.

    Raises:
        SetpointError: if another process sweeps there, or the folder cannot be written.
    """

    def __init__(self, folder: Path, source: str, duplicates: Sequence[Duplicate]) -> None:
        self.path = folder / NAME
        self._source = source
        self._duplicates = duplicates
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SetpointError(f"{folder} cannot be made: {error.strerror}") from error
        _refuse_linked_points(folder)
        try:
            self._lock = RunLock(folder / LOCK)
        except SetpointError as error:
            raise SetpointError(
                f"{folder}: a sweep is under way here: {error}; --experiment NAME gives this one "
                f"a folder of its own"
            ) from None
        self._before = read_record_of(folder) if self.path.exists() else []

    def recall(self, tasks: Sequence[Task]) -> None:
        """Take over how long finished points took, which their runs do not say."""
        known = {point["fingerprint"]: point for point in self._before}
        for task in tasks:
            point = known.get(task.point.fingerprint)
            if point is not None and task.status == FINISHED == point["status"]:
                task.seconds, task.exit_status = point.get("seconds"), point.get("exit_status")

    def write(self, tasks: Sequence[Task], **details: Any) -> dict[str, Any]:
        """Replace the record.

        Arguments:
            details: what else is to be kept, such as the best trial of a search.

        Raises:
            RunError: if it cannot be written; what was there before is unchanged.
        """
        here = {task.point.fingerprint for task in tasks}
        earlier = [point for point in self._before if point["fingerprint"] not in here]
        record = {
            "schema": SCHEMA,
            "source": self._source,
            "points": [task.to_json() for task in tasks],
            "earlier": [point for point in earlier if Path(point["run"]).is_dir()],
            "duplicates": duplicates_json(self._duplicates),
            **details,
        }
        write_json(self.path, record)
        return record

    def close(self) -> None:
        """Let another process sweep here."""
        self._lock.release()


def _refuse_linked_points(folder: Path) -> None:
    """Refuse points that would be written elsewhere: a folder may come from others.

    Raises:
        SetpointError: naming the first link.
    """
    try:
        link = next(links_out_of(folder, only=POINTS), None)
    except OSError as error:
        raise SetpointError(f"{error.filename} cannot be read: {error.strerror}") from error
    if link is not None:
        raise SetpointError(
            f"{link} is a link to {os.path.realpath(link)}, and a sweep writes to folders of its "
            f"own.\nValid: a folder in its place; to keep sweeps on another disk, set workspace to "
            f"a folder there, or link {folder} as a whole"
        )


def duplicates_json(duplicates: Sequence[Duplicate]) -> list[dict[str, Any]]:
    """The points that were left out, for machines."""
    return [
        {"name": each.name, "same_as": each.same_as, "differing": each.differing}
        for each in duplicates
    ]


def read_record_of(folder: Path) -> list[dict[str, Any]]:
    """All points that a sweep's folder knows, those of earlier sweeps last.

    Arguments:
        folder: with a `sweep.json`.

    Raises:
        SetpointError: if the record cannot be read.
    """
    path = folder / NAME
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
