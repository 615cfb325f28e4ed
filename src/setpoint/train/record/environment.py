"""What a session writes down before it trains, and what it compares with the sessions before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from setpoint import __version__
from setpoint.config import (
    SetpointError,
    cautions_of,
    dropped_values,
    fingerprint,
    overridden,
    record_files,
    within,
)
from setpoint.data.corpus import Corpus
from setpoint.track.atomic import write_text
from setpoint.track.environment import environment
from setpoint.track.events import EventLog
from setpoint.track.jsonl import read_jsonl
from setpoint.track.progress import Progress
from setpoint.track.run_directory import RunDirectory
from setpoint.train.build.components import Components
from setpoint.train.build.parameter_groups import rows_of
from setpoint.train.build.utilization import Utilization
from setpoint.train.config import Job
from setpoint.train.record.contract import (
    Accepted,
    check_contract,
    describe_accepted,
    describe_data,
    describe_idle,
)

ENVIRONMENT = "environment.json"
# What may tell why a resumed run differs; the rest, such as the time, always does.
COMPARED = ("code", "python", "packages", "system", "processor", "torch", "threads", "variables")


@dataclass(frozen=True, slots=True)
class Beginning:
    """How a session begins.

    Arguments:
        today: the job as it was given; another one where nothing is left to train.
        known: what `compare_with_record` returned; None for a new run.
        resumed_at: the step of the checkpoint; None without one.
        over: whether nothing is left to train, so that what is accepted has no effect.
    """

    job: Job
    today: Job
    known: tuple[Accepted, dict[str, Any]] | None
    resumed_at: int | None
    over: bool
    ended: str | None
    use: Utilization


def keep_record(
    run: RunDirectory, parts: Components, events: EventLog, progress: Progress, begun: Beginning
) -> None:
    """Write the record of a new run, or the event of a session more.

    Raises:
        RunError: if it cannot be written.
    """
    start = _facts(parts, begun)
    for line in _notes(begun):
        progress.note(line)
    if begun.known is None:
        for value in dropped_values(begun.today):
            progress.note(f"dropped: {value}")
        events.write("start", step=0, **start)
        write_environment(run, parts)
        write_config(run, begun.today)
        return
    accepted, environment = begun.known
    if begun.over:
        notes, kept = [*describe_idle(accepted), _finished(run, accepted, begun)], []
        accepted = replace(accepted, data=())
    else:
        notes, kept = describe_accepted(accepted), accepted.differences
    for line in notes:
        progress.note(line)
    # Before the record changes: after a kill in between, the difference would be lost.
    events.write(
        "resume",
        step=begun.resumed_at or 0,
        **start,
        accepted=[difference.to_json() for difference in kept],
        **({"data": list(accepted.data)} if accepted.data else {}),
        environment=keep_diffs(run, environment),
    )


def _facts(parts: Components, begun: Beginning) -> dict[str, Any]:
    """What the event of a start or a resume says of the job."""
    facts: dict[str, Any] = {"fingerprint": fingerprint(begun.job), "version": __version__}
    if parts.pretrained is not None:
        facts["pretrained"] = parts.pretrained
    facts["groups"] = [row.to_json() for row in rows_of(begun.today.optimizer, parts.model)]
    facts["utilization"] = begun.use.record()
    cautions = cautions_of(begun.job)
    if cautions:
        facts["cautions"] = [caution.to_json() for caution in cautions]
    return facts


def _notes(begun: Beginning) -> Iterator[str]:
    """What people should know of the job before it trains."""
    if begun.use.unknown is not None and begun.use.peak is not None:
        yield f"mfu will be null: {begun.use.unknown}"
    for caution in cautions_of(begun.job):
        yield f"caution: {caution.line()}"
    for line in overridden(begun.today):
        yield f"overridden: {line}"


def _finished(run: RunDirectory, accepted: Accepted, begun: Beginning) -> str:
    """Where and why the run is finished, and what follows for this session."""
    nothing = "nothing is left to train" + "; nothing accepted" * accepted.learned
    finished = f"{run.path} is finished at step {begun.resumed_at}"
    if begun.ended is not None:
        finished += f": {begun.ended}"
        nothing += (
            "; to go on, raise evaluation.early_stopping.patience or set "
            "evaluation.early_stopping to null"
        )
    return f"{finished}; {nothing}"


def write_data(run: RunDirectory, parts: Components) -> None:
    """Bring the record of the data up to the documents that are trained on now.

    Raises:
        RunError: if it cannot be written.
    """
    facts = {**_read(run), "data": {side: describe(corpus) for side, corpus in _sides(parts)}}
    run.write_json(ENVIRONMENT, facts)


def write_environment(run: RunDirectory, parts: Components) -> None:
    """Write down where, with what and on what data a run began.

    Raises:
        RunError: if it cannot be written.
    """
    facts = environment()
    facts["data"] = {side: describe(corpus) for side, corpus in _sides(parts)}
    run.write_json(ENVIRONMENT, facts)


def compare_with_record(
    run: RunDirectory, job: Job, parts: Components, accept: Sequence[str] = ()
) -> tuple[Accepted, dict[str, Any]]:
    """Hold a session against the run's record; nothing is written.

    The record keeps the environment of the first session; what has changed since belongs into the
    event of the resume.

    Arguments:
        accept: see `check_contract`.

    Raises:
        SetpointError: if what is learned differs, or the data does.
    """
    accepted = check_contract(str(run.path), job, accept)
    recorded = _read(run)
    data = compare_data(recorded["data"], parts)
    asked = [path for path in accept if within(path.strip(), "data")]
    if not asked:
        refuse_data(str(run.path), data)
    idle = tuple(path for path in accepted.idle if not (data and within(path, "data")))
    accepted = replace(accepted, data=tuple(data), idle=idle)
    refuse_idle(run, accepted)
    today = json.loads(json.dumps(environment()))
    changed = {
        key: {"recorded": recorded.get(key), "today": today.get(key)}
        for key in COMPARED
        if recorded.get(key) != today.get(key)
    }
    return accepted, changed


def keep_diffs(run: RunDirectory, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Put today's uncommitted code into files of its own, so that events stay small.

    Arguments:
        run: the directory, locked; the files are `logs/code-DIGEST.diff`.

    Returns:
        the same with digests in the place of the differences of the code; those of the first
        session are in `environment.json`.
    """
    if "code" not in changed:
        return dict(changed)
    code = {
        side: {name: _without_diff(part) for name, part in (repositories or {}).items()}
        for side, repositories in changed["code"].items()
    }
    for part in (changed["code"]["today"] or {}).values():
        if isinstance(part, dict) and part.get("diff"):
            write_text(run.logs / f"code-{_digest(part['diff'])[:8]}.diff", part["diff"])
    return {**changed, "code": code}


def _without_diff(part: Any) -> Any:
    if not isinstance(part, dict) or not part.get("diff"):
        return part
    return {**part, "diff": {"sha256": _digest(part["diff"]), "characters": len(part["diff"])}}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def write_config(run: RunDirectory, job: Job) -> None:
    """Write the record of the configuration; see `RunDirectory.write_record`."""
    run.write_record(record_files(job), type(job).__setpoint__.schema)


def _sides(parts: Components) -> Iterator[tuple[str, Corpus]]:
    """The sides of the data that there are."""
    yield "train", parts.train
    if parts.held_out is not None:
        yield "held_out", parts.held_out


def describe(corpus: Corpus) -> dict[str, Any]:
    """A side of the data as the record has it."""
    return {
        "bytes": corpus.byte_count,
        "tokens": len(corpus.tokens),
        "digest": corpus.digest,
        "files": [list(file) for file in corpus.files],
    }


def compare_data(recorded: Mapping[str, Any], parts: Components) -> list[dict[str, Any]]:
    """Compare today's documents with those that a run was trained on.

    Returns:
        an entry for each side that differs: `side`, and the names of the documents that are
        `gone`, `new` or `changed`.
    """
    found: list[dict[str, Any]] = []
    for side, corpus in _sides(parts):
        entry = recorded.get(side)
        if entry is None or entry["digest"] == corpus.digest:
            continue
        before = {name: digest for name, _, digest in entry["files"]}
        now = {name: digest for name, _, digest in corpus.files}
        both = [name for name in now if name in before]
        found.append(
            {
                "side": side,
                "gone": [name for name in before if name not in now],
                "new": [name for name in now if name not in before],
                "changed": [name for name in both if now[name] != before[name]],
            }
        )
    return found


def refuse_data(folder: str, found: Sequence[Mapping[str, Any]]) -> None:
    """Refuse to go on with other documents, naming them.

    Arguments:
        found: what `compare_data` returned.

    Raises:
        SetpointError: if there is any.
    """
    if found:
        words = "; ".join(describe_data(side) for side in found)
        raise SetpointError(
            f"{folder} cannot be resumed: its data is not what it was trained on: {words}. Put the "
            f"files back, go on with today's by --accept data, or train a run of its own"
        )


def refuse_idle(run: RunDirectory, accepted: Accepted) -> None:
    """Refuse paths to accept that have no effect and never had one.

    Arguments:
        accepted: what `check_contract` returned.

    Raises:
        SetpointError: if nothing differs under a path, and no session before accepted anything
            there: what a queue starts again after it was accepted is fine.
    """
    log = run.events
    rows = read_jsonl(log, damaged=[]) if log.exists() else []
    before = [item["path"] for row in rows for item in row.get("accepted", ())]
    before += ["data" for row in rows if row.get("data")]
    for path in accepted.idle:
        if not any(within(item, path) or within(path, item) for item in before):
            why = "nothing differs there from the record of"
            if any(within(item.path, path) for item in accepted.differences):
                why = "what differs there may change without it on a resume of"
            raise SetpointError(f"--accept {path} has no effect: {why} {run.path}; leave it out")


def _read(run: RunDirectory) -> dict[str, Any]:
    path = run.path / ENVIRONMENT
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found["data"]["train"]["files"], list):
            raise TypeError("data.train.files is not a list")
        return found
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetpointError(f"{path}: the record of the run cannot be read: {error}") from None
