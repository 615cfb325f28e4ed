"""Status and goodput of a run from its events; goodput is the fraction of time spent in steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

FINISHED, STOPPED, FAILED, RUNNING, KILLED = "finished", "stopped", "failed", "running", "killed"
"""Statuses: completed; stopped on request; failed with an error; in progress; ended without an
event."""
STATUSES = (FINISHED, STOPPED, FAILED, RUNNING, KILLED)
BEGINS = ("start", "resume", "restart")
"""Events that start a session."""


def status_of(events: Sequence[Mapping[str, Any]], is_alive: Callable[[], bool]) -> str:
    """The status of a run; `is_alive` is called if the events do not include an end."""
    for event in reversed(events):
        if event.get("event") == "end":
            return FINISHED if event.get("status") == 0 else STOPPED
        if event.get("event") == "fault":
            return FAILED
        if event.get("event") in BEGINS:
            break
    return RUNNING if is_alive() else KILLED


def last_step(events: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> int:
    """The current step of a run, from its newest event or row; a rollback lowers it."""
    newest = (next((step for row in reversed(part) if type(step := row.get("step")) is int), 0)
              for part in (events, rows))  # fmt: skip
    return max(newest)


Row = Mapping[str, Any]
"""A row of `events.jsonl` or `metrics.jsonl`."""

COUNTS = ("wall", "sessions", "lost_steps")
"""Fields of `Goodput` that are not parts of `wall`."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """Time of a run in seconds, by activity; the parts add up to `wall`.

    Arguments:
        wall: time from the start of the first process to the last trace of the last process,
            without time in which nothing was left to train.
        trained: time in steps that are still part of the run, without `waiting`.
        waiting: time spent waiting for data in these steps.
        lost: time in steps, and in evaluations after them, that were repeated after a kill, a
            failure or a rollback. The time of a killed process after its last row counts as `idle`.
        starting: time from the start of a process until the model is built and restored.
        saving: time in which checkpoints blocked training.
        evaluating: time in evaluations that are still part of the run.
        idle: time between sessions.
        other: the rest, such as logs, profiles and callbacks.
        sessions: number of starts with something to train.
        lost_steps: number of steps in `lost`.
    """

    wall: float
    trained: float
    waiting: float
    lost: float
    starting: float
    saving: float
    evaluating: float
    idle: float
    other: float
    sessions: int
    lost_steps: int

    @property
    def share(self) -> float | None:
        """The goodput: `trained` over `wall`; None if no time is recorded."""
        return self.trained / self.wall if self.wall > 0 else None

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of the nonzero parts, largest first."""
        parts = {n: s for n, s in asdict(self).items() if n not in COUNTS and s > 0}
        return dict(sorted(parts.items(), key=lambda part: -part[1]))

    def line(self) -> str:
        """Text with the shares of all parts of at least 1 %."""
        named = [
            f"{name} {seconds / self.wall:.0%}"
            for name, seconds in self.parts.items()
            if seconds >= 0.01 * self.wall
        ]
        return ", ".join(named)


@dataclass(slots=True)
class _Session:
    """A session: one process, or all ranks.

    Arguments:
        began, started, ended: times in seconds since 1970 of the process start, the first step and
            the last trace.
        step, seconds: step of the run, and seconds of training so far, at the start of the session.
        end, reached: the same at the end; None if not recorded.
        is_done: whether nothing was left to train at its end.
    """

    began: float
    started: float
    ended: float
    step: int
    seconds: float
    end: int | None = None
    reached: float | None = None
    is_done: bool = False


def goodput(events: Sequence[Row], metrics: Sequence[Row]) -> Goodput:
    """Divide the time of a run by activity; clock jumps make parts smaller, but never negative."""
    sessions = _sessions(events)
    train = [row for row in metrics if row.get("kind") == "train"]
    if not sessions:
        return Goodput(0, 0, 0, 0, 0, 0, 0, 0, 0, sessions=0, lost_steps=0)
    _extend(sessions, metrics)
    dropped = [row["dropped"] for row in events if isinstance(row.get("dropped"), Mapping)]
    last = sessions[-1]
    reached = last.reached
    if reached is None:  # it is running, or was killed
        reached = max([last.seconds, *(_number(row, "seconds") for row in train[-1:])])
    waiting = _waiting(train)
    trained = max(0.0, reached - waiting)
    lost = sum(_number(event, "seconds") + _number(event, "evaluating") for event in dropped)
    starting = sum(max(0.0, session.started - session.began) for session in sessions)
    saving = sum(_number(row, "seconds") for row in events if row.get("event") == "save")
    evaluating = sum(_number(row, "evaluation_seconds") for row in metrics)
    idle = sum(
        max(0.0, after.began - before.ended)
        for before, after in pairwise(sessions)
        if not before.is_done
    )
    known = trained + waiting + lost + starting + saving + evaluating
    spans = sum(max(0.0, session.ended - session.began) for session in sessions)
    return Goodput(
        wall=idle + max(spans, known),
        trained=trained,
        waiting=waiting,
        lost=lost,
        starting=starting,
        saving=saving,
        evaluating=evaluating,
        idle=idle,
        other=max(0.0, spans - known),
        sessions=len(sessions),
        lost_steps=sum(int(_number(event, "steps")) for event in dropped),
    )


def dropped(
    events: Sequence[Row],
    rows: Sequence[Row],
    step: int,
    seconds: float,
    reached: tuple[int, float] | None = None,
) -> dict[str, Any] | None:
    """The time lost by going back to a checkpoint, for its event.

    Arguments:
        events: events of the run so far.
        rows: metric rows after the checkpoint.
        step, seconds: step of the checkpoint, and seconds of training up to it.
        reached: the same for the current end of the run; None: read it from the record.

    Returns:
        `steps`, their `seconds`, the seconds of `evaluating` after them, the number of dropped
        `rows`, and the `time` of the last row; None if nothing is lost.
    """
    for event in () if reached is not None else reversed(events):
        if event.get("event") in ("end", "fault") and "seconds" in event:
            reached = int(_number(event, "step")), _number(event, "seconds")
        if event.get("event") in ("start", "resume", "restart", "end", "fault"):
            break
    train = [row for row in rows if row.get("kind") == "train" and "seconds" in row]
    places = [(int(_number(row, "step")), _number(row, "seconds")) for row in train[-1:]]
    places += [(step, seconds), *([reached] if reached else [])]
    last = max(places)
    if last[0] <= step and not rows:
        return None
    return {
        "steps": max(0, last[0] - step),
        "seconds": round(max(0.0, last[1] - seconds), 3),
        "evaluating": round(sum(_number(row, "evaluation_seconds") for row in rows), 3),
        "rows": len(rows),
        **({"time": rows[-1]["time"]} if rows and "time" in rows[-1] else {}),
    }


def _sessions(events: Sequence[Row]) -> list[_Session]:
    """The sessions that trained."""
    sessions: list[_Session] = []
    ended = False
    for event in events:
        time, name = timestamp(event.get("time")), event.get("event")
        if time is None:
            continue
        lost = event.get("dropped")
        last_row = timestamp(lost.get("time")) if isinstance(lost, Mapping) else None
        if sessions and last_row is not None and name != "rollback":
            sessions[-1].ended = max(sessions[-1].ended, last_row)
        if name in ("start", "resume"):
            began = timestamp(event.get("began"))
            began = time if began is None else began
            step, seconds = int(_number(event, "step")), _number(event, "seconds")
            sessions.append(_Session(began, time, time, step, seconds))
            ended = False
        elif (
            sessions and name != "restart" and not ended
        ):  # other processes prune and set aside after its end
            ended = name == "end"
            session = sessions[-1]
            session.ended = max(session.ended, time)
            if name in ("end", "fault"):
                session.end = int(_number(event, "step"))
                session.reached = _number(event, "seconds") if "seconds" in event else None
                session.is_done = name == "end" and event.get("status") == 0
    return [
        current
        for before, current in zip([None, *sessions], sessions, strict=False)
        if not (before and before.is_done and before.end == current.step == current.end)
    ]


def _extend(sessions: Sequence[_Session], metrics: Sequence[Row]) -> None:
    """Extend sessions to their last metric row."""
    bounds = [session.began for session in sessions[1:]]
    place = 0
    for row in metrics:
        time = timestamp(row.get("time"))
        if time is None or time < sessions[0].began:
            continue
        while place < len(bounds) and time >= bounds[place]:
            place += 1
        sessions[place].ended = max(sessions[place].ended, time)


def _waiting(train: Sequence[Row]) -> float:
    """Seconds of waiting for data, from the fraction in each row."""
    waiting = before = 0.0
    for row in train:
        seconds = _number(row, "seconds")
        waiting += _number(row, "data_wait") * max(0.0, seconds - before)
        before = seconds
    return waiting


def _number(row: Row, name: str) -> float:
    value = row.get(name)
    if not isinstance(value, int | float) or not 0 <= value < 1e15:  # damaged, or not a number
        return 0.0
    return float(value)


def timestamp(time: object) -> float | None:
    """Timestamp of a row as seconds since 1970; None if invalid."""
    try:
        return datetime.fromisoformat(str(time)).timestamp()
    except (ValueError, OverflowError):
        return None
