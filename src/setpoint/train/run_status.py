"""Status of a run from its directory: last checkpoint, effect of a stop, resume command."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Any

from setpoint.checkpoint.manifest import STATE, decode_state
from setpoint.checkpoint.places import newest_whole
from setpoint.config import IDENTITY, SetpointError, for_error
from setpoint.config.record.record import recorded_differences
from setpoint.files.lock import is_locked
from setpoint.parallel.rank import launcher_process, own_rank
from setpoint.report.goodput import Goodput, goodput
from setpoint.resilience.limits import watch_limits
from setpoint.resilience.signals import StopRequest
from setpoint.track.jsonl import readable_rows
from setpoint.train.config import Job
from setpoint.train.run_name import is_drawn, namesakes

FINISHED = "is finished"
IS_AT = "is at step"
MOST_CHANGES = 3
"""Differences from another run that are shown."""
THE_SAME = "the same command"


def stop_message(
    root: Path, since: int | None = None, again: str = THE_SAME, keeps: bool = True
) -> str:
    """Message about a stop after all progress was saved.

    Arguments:
        since: the first step of this session; None before the first step.
        again: command that resumes the run; see `command_again`.
        keeps: whether the session saves checkpoints.
    """
    step, _ = newest_whole(root)
    if not keeps:
        where = "starts over" if step is None else f"continues from step {step}"
        return f"nothing is saved (checkpoint.save = false); {again} {where}"
    if step is None:
        return f"nothing was trained; {again} starts over"
    if since is None or step <= since:
        return f"nothing was trained; {again} resumes at step {step}"
    return f"saved at step {step}; {again} resumes there"


def watch_stops(stop: StopRequest, job: Job, directory: Path) -> None:
    """Watch for signals, session limits and the stop file; a second call has no effect."""
    again = command_again(job, directory)
    stop.outlook = partial(stop_message, directory / "checkpoints", again=again)
    stop.watch()
    watch_limits(stop, job.resilience, directory, launcher_process(), own_rank() == 0)


def command_again(job: Job, path: str | Path) -> str:
    """The command that resumes a run: the original one, unless that would draw another seed."""
    return f"`setpoint train {shlex.quote(str(path))}`" if is_drawn(job) else THE_SAME


def run_status(folder: str) -> str:
    """Predicate about the progress of a run, to follow its name."""
    sessions = ("start", "resume", "restart", "end")
    rows = [row for row in _rows(folder) if row.get("event") in sessions]
    if rows and rows[-1]["event"] == "end" and rows[-1].get("status") == 0:
        return f"{FINISHED} at step {rows[-1].get('step')}"
    step, _ = newest_whole(Path(folder, "checkpoints"))
    return "has no checkpoint yet" if step is None else f"{IS_AT} {step}"


def stopped_namesake(job: Job, directory: Path) -> str | None:
    """Note about an unfinished run of the same name, when a new run starts.

    A changed configuration value starts a new run, although a resume may have been expected. Only
    the newest such run is considered, unless it is training or has no checkpoint.
    """
    if not directory.name.startswith(f"{job.name}-"):
        return None
    events = [Path(run, "events.jsonl") for run in namesakes(str(directory))]
    written = {file: file.stat().st_mtime for file in events if file.is_file()}
    if not written:
        return None
    other = max(written, key=lambda file: written[file]).parent
    status = run_status(str(other))
    if is_locked(other / ".lock") or not status.startswith(IS_AT):
        return None
    try:
        differences = recorded_differences(str(other), job)
    except SetpointError:
        return None
    changes = [item for item in differences if item.role is IDENTITY]
    if not changes:
        return None
    shown = [
        f"{item.path} {for_error(item.left)} -> {for_error(item.right)}"
        for item in changes[:MOST_CHANGES]
    ]
    more = len(changes) - len(shown)
    return (
        f"this is a new run: {other} {status}, and differs in {', '.join(shown)}"
        f"{f' and {more} more' if more else ''}"
    )


def data_position(folder: str) -> str | None:
    """Text about the data position of the newest complete checkpoint; None if unknown."""
    _, directory = newest_whole(Path(folder, "checkpoints"))
    if directory is None:
        return None
    try:
        position = decode_state((directory / STATE).read_bytes()).get("data")
    # A damaged one, which training reports.
    except (OSError, ValueError):
        return None
    return position if isinstance(position, str) and position else None


def lengthened_from(folder: str, now: object) -> str | None:
    """The initial duration of a run; None if unchanged."""
    changes = [item for row in _rows(folder) for item in row.get("accepted", ())]
    first = next((item["left"] for item in changes if item["path"] == "duration"), now)
    return None if first == now else str(first)


def goodput_of(folder: str | Path) -> Goodput:
    """The goodput of a run, from its record; damaged lines are omitted."""
    return goodput(_rows(folder), _rows(folder, "metrics.jsonl"))


def _rows(folder: str | Path, name: str = "events.jsonl") -> list[dict[str, Any]]:
    return readable_rows(Path(folder, name))
