"""What a session writes before it trains: the record of a new run, or the event of a resume."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from setpoint import __version__
from setpoint.config import (
    ORIGINS,
    cautions_of,
    dropped_values,
    fingerprint,
    overridden,
)
from setpoint.report.goodput import dropped
from setpoint.track.console import time_of
from setpoint.track.jsonl import read_jsonl
from setpoint.track.tracker import RunFacts
from setpoint.track.trackers import JSONL
from setpoint.train.build.data import where_in_data
from setpoint.train.build.parameter_groups import rows_of
from setpoint.train.contract import Accepted, describe_accepted, describe_idle
from setpoint.train.environment import keep_diffs, write_data, write_environment
from setpoint.train.position import Position
from setpoint.train.record.context import Run, Start

BEGINNINGS = ("start", "resume", "restart", "rollback")
"""Events after which steps may come that were there before."""


def write_start(run: Run, start: Start) -> None:
    """Write the record of a new run, or the event of a session more.

    Raises:
        RunError: if it cannot be written.
    """
    facts = _facts(run, start)
    for line in (*_notes(run, start), *(start.loaded.lines() if start.loaded else ())):
        run.progress.note(line)
    if run.accepted is None:
        for value in dropped_values(run.job):
            run.progress.note(f"dropped: {value}")
        run.events.write("start", step=start.position.step, **facts)
        _write_loaded(run, start)
        write_environment(run.directory, run.parts, run.job)
        _write_config(run)
        return
    accepted = run.accepted
    if start.is_over:
        notes, kept = [*describe_idle(accepted), _finished(run, accepted, start)], []
        accepted = replace(accepted, data=())
    else:
        notes, kept = describe_accepted(accepted), accepted.differences
    for line in notes:
        run.progress.note(line)
    # Before the record changes: after a kill in between, the difference would be lost.
    run.events.write(
        "resume",
        step=start.position.step,
        **lost_since(run, start.position, run.trackers.states[JSONL]["offset"]),
        data_position=where_in_data(run.job, run.parts.feed.state_dict()),
        **facts,
        accepted=[difference.to_json() for difference in kept],
        **({"data": list(accepted.data)} if accepted.data else {}),
        environment=keep_diffs(run.directory, run.environment),
    )
    _write_loaded(run, start)


def _write_loaded(run: Run, start: Start) -> None:
    if start.loaded is not None:
        run.events.write("load", **start.loaded.to_json())


def facts_of(run: Run, start: Start) -> RunFacts:
    """What trackers show of the run; to be asked for when its start has been written."""
    directory = run.directory
    with directory.events.open("rb") as file:
        first = file.readline()
    session = sum(row.get("event") in BEGINNINGS for row in read_jsonl(directory.events, []))
    environment = run.environment or json.loads((directory.path / "environment.json").read_bytes())
    return RunFacts(
        run_id=hashlib.sha256(directory.name.encode() + first).hexdigest()[:32],
        name=directory.name,
        experiment=run.job.experiment,
        fingerprint=fingerprint(start.identity),
        config=json.loads(run.record[directory.config.name]),
        origins=json.loads(run.record[ORIGINS]),
        environment=environment,
        session=session,
        description=run.job.description,
    )


def change_record(run: Run, start: Start) -> None:
    """Write today's configuration, and data, into the record of a run that has trained with it."""
    if run.accepted is not None and start.best.changed:
        run.store.forget_best()
    run.parts.world.on_main(lambda: _write_changed(run))


def _write_changed(run: Run) -> None:
    if run.accepted is not None and run.accepted.data:
        write_data(run.directory, run.parts)
    _write_config(run)


def _write_config(run: Run) -> None:
    run.directory.write_record(run.record, type(run.job).__setpoint__.schema)


def lost_since(
    run: Run, position: Position, offset: int, reached: Position | None = None
) -> dict[str, Any]:
    """What an event says of steps after a checkpoint that are lost, for `goodput`.

    Arguments:
        position: of the checkpoint.
        offset: how long `metrics.jsonl` was when it was saved.
        reached: where the run is; None where its record says how far it was.

    Returns:
        `dropped` alone, or nothing where no step is lost.
    """
    metrics, events = run.directory.metrics, run.directory.events
    rows = read_jsonl(metrics, [], offset) if metrics.exists() else []
    found = dropped(
        read_jsonl(events, []) if reached is None else [],
        rows,
        position.step,
        position.seconds,
        None if reached is None else (reached.step, reached.seconds),
    )
    return {} if found is None else {"dropped": found}


def _facts(run: Run, start: Start) -> dict[str, Any]:
    """What the event of a start or a resume says of the job."""
    facts: dict[str, Any] = {
        "began": time_of(run.began),
        "seconds": round(start.position.seconds, 3),
        "fingerprint": fingerprint(start.identity),
        "version": __version__,
    }
    if run.parts.pretrained is not None:
        facts["pretrained"] = run.parts.pretrained
    facts["groups"] = [
        row.to_json() for row in rows_of(run.job.optimizer, run.parts.model, run.parts.described)
    ]
    if run.parts.adapter is not None:
        facts["adapter"] = run.parts.adapter.to_json()
    facts["utilization"] = run.utilization.record()
    if run.objects:
        facts["callbacks"] = list(run.objects)
    cautions = cautions_of(start.identity)
    if cautions:
        facts["cautions"] = [caution.to_json() for caution in cautions]
    return facts


def _notes(run: Run, start: Start) -> Iterator[str]:
    """What people should know of the job before it trains."""
    grown = (run.parts.pretrained or {}).get("grown")
    if grown is not None:
        yield (
            f"model: the vocabulary grows from {grown['from']} to {grown['to']} tokens; new rows "
            f"begin as the mean of those of {run.job.model.pretrained}"
        )
    if run.parts.adapter is not None:
        yield f"adapter: {run.parts.adapter.line()}"
    use = run.utilization
    if use.unknown is not None and use.peak is not None:
        yield f"mfu will be null: {use.unknown}"
    for caution in cautions_of(start.identity):
        yield f"caution: {caution.line()}"
    if lost := [name for name in _objects_before(run) if name not in run.objects]:
        yield (
            f"callbacks that the session before had as objects, train(callbacks=...), are in no "
            f"record and not called: {', '.join(lost)}"
        )
    for line in overridden(run.job):
        yield f"overridden: {line}"


def _objects_before(run: Run) -> list[str]:
    """The classes of the callbacks that the last session was given as objects."""
    if run.accepted is None or not run.directory.events.exists():
        return []
    rows = [row for row in read_jsonl(run.directory.events, []) if row.get("event") in BEGINNINGS]
    found = rows[-1].get("callbacks") if rows else None
    return [str(name) for name in found] if isinstance(found, list) else []


def _finished(run: Run, accepted: Accepted, start: Start) -> str:
    """Where and why the run is finished, and what follows for this session."""
    nothing = "nothing is left to train" + "; nothing accepted" * accepted.learned
    finished = f"{run.directory.path} is finished at step {start.resumed_at}"
    if start.ended is not None:
        finished += f": {start.ended}"
        nothing += (
            "; to train further, raise evaluation.early_stopping.patience or set "
            "evaluation.early_stopping to null"
        )
    return f"{finished}; {nothing}"
