"""How far the run of a point has come, read from its run directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from setpoint.config import CONFIG, SetpointError, to_plain
from setpoint.track.jsonl import read_jsonl
from setpoint.train.config import Job
from setpoint.train.contract import check_contract

EVENTS = "events.jsonl"


class RunState(NamedTuple):
    """What is known of a run before it is started.

    Arguments:
        finished: whether the run came to its end, as long as it is to be today.
        step: of the last event; 0 if nothing was saved.
    """

    started: bool
    finished: bool
    step: int


def run_state(path: Path, job: Job) -> RunState:
    """Look at the run directory of a point.

    Raises:
        SetpointError: if the run that is there cannot be gone on with under this configuration.
    """
    if not (path / CONFIG).is_file():
        return RunState(False, False, 0)
    check_contract(str(path), job)
    events = read_jsonl(path / EVENTS) if (path / EVENTS).exists() else []
    saves = [event for event in events if event.get("event") in ("save", "end")]
    last = events[-1] if events else {}
    ended = last.get("event") == "end" and last.get("status") == 0
    step = saves[-1].get("step") if saves else 0
    return RunState(True, ended and _same_duration(path, job), step if type(step) is int else 0)


def _same_duration(path: Path, job: Job) -> bool:
    """Whether the run was to be as long as it is to be today; a longer one goes on."""
    try:
        recorded: Any = json.loads((path / CONFIG).read_text(encoding="utf-8"))
        return recorded["duration"] == to_plain(job)["duration"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetpointError(f"{path / CONFIG}: the record cannot be read: {error}") from None
