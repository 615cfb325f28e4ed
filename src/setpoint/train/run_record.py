"""Record of a run: the start of each session, configuration, environment and data."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from setpoint.config import ORIGINS, RunError, SetpointError, cautions_of, fingerprint
from setpoint.config.draft.walk import dropped_values, overridden
from setpoint.config.words.names import within
from setpoint.data.document import DataIdentity
from setpoint.data.prepare import outdated_inputs
from setpoint.data.reading import requests_of
from setpoint.data.token_store import changed_names, read_inputs
from setpoint.files.atomic import write_text
from setpoint.report.goodput import dropped
from setpoint.track.config import ENVIRONMENT, MARK
from setpoint.track.console import time_of
from setpoint.track.environment import environment
from setpoint.track.jsonl import readable_rows
from setpoint.track.redact import declared_secrets
from setpoint.track.run_directory import RunDirectory
from setpoint.track.trackers import RunFacts
from setpoint.train.build.components import Components
from setpoint.train.build.job_data import describe_data_position
from setpoint.train.build.job_parameters import gathered
from setpoint.train.config import Job
from setpoint.train.contract import (
    CHANGES,
    Accepted,
    ContractRefused,
    describe_accepted,
    describe_data,
    describe_idle,
)
from setpoint.train.position import Position
from setpoint.train.run_name import identity_mark
from setpoint.train.run_status import stopped_namesake
from setpoint.train.session import Run
from setpoint.version import VERSION

BEGINNINGS = ("start", "resume", "restart", "rollback")
"""Events after which earlier steps may be repeated."""


def start_record(run: Run) -> None:
    """Record the start of a session, and open the run's trackers.

    Raises:
        RunError: the record cannot be written.
    """
    run.world.on_main(lambda: _write_start(run))
    note = run.progress.note
    run.world.on_main(lambda: run.trackers.open(facts_of(run), run.started.step, note))


def _write_start(run: Run) -> None:
    """Write the record of a new run, or the event of a resume.

    The order is: the event, the environment, the identity mark, origins, `config.toml`, and finally
    `config.json`, which makes the directory a run.

    Raises:
        RunError: the record cannot be written.
    """
    facts = _facts(run)
    for line in (*_notes(run), *(run.loaded.lines() if run.loaded else ())):
        run.progress.note(line)
    if run.accepted is None:
        if namesake := stopped_namesake(run.job, run.directory):
            run.progress.note(namesake)
        for value in dropped_values(run.job):
            run.progress.note(f"dropped: {value}")
        run.events.write("start", step=run.started.step, **facts)
        _write_loaded(run)
        _write_environment(run, environment(secrets=declared_secrets(run.job)))
        _write_config(run)
        return
    accepted = run.accepted
    if run.had_nothing_left:
        notes, kept = [*describe_idle(accepted), _finished(run, accepted)], []
        accepted = replace(accepted, data=())
    else:
        notes, kept = describe_accepted(accepted), accepted.differences
    for line in notes:
        run.progress.note(line)
    # Before the record changes: if killed in between, the difference would be lost.
    run.events.write(
        "resume",
        step=run.started.step,
        **dropped_since(run, run.started, run.trackers.metrics_offset),
        data_position=describe_data_position(run.job, run.components.feed.state_dict()),
        **facts,
        accepted=[difference.to_json() for difference in kept],
        **({"added": [field.to_json() for field in accepted.added]} if accepted.added else {}),
        **({"data": list(accepted.data)} if accepted.data else {}),
        environment=keep_diffs(run.files, run.environment),
    )
    _write_loaded(run)


def _write_loaded(run: Run) -> None:
    if run.loaded is not None:
        run.events.write("load", **run.loaded.to_json())


def facts_of(run: Run) -> RunFacts:
    """The facts of a run for its trackers, once its start has been written."""
    directory = run.files
    with directory.events.open("rb") as file:
        first = file.readline()
    session = sum(row.get("event") in BEGINNINGS for row in readable_rows(directory.events))
    environment = run.environment or json.loads((directory.path / ENVIRONMENT).read_bytes())
    return RunFacts(
        run_id=hashlib.sha256(directory.name.encode() + first).hexdigest()[:32],
        name=directory.name,
        experiment=run.job.experiment,
        fingerprint=fingerprint(run.identity),
        config=json.loads(run.record[directory.config.name]),
        origins=json.loads(run.record[ORIGINS]),
        environment=environment,
        session=session,
        description=run.job.description,
    )


def change_record(run: Run) -> None:
    """Update the configuration and data in the record, after the first step with them."""
    if run.accepted is not None and run.evaluations.changed:
        run.store.forget_best()

    def write() -> None:
        if run.accepted is not None and run.accepted.data:
            _write_environment(run, _read_environment(run.files))
        _write_config(run)

    run.world.on_main(write)


def _write_config(run: Run) -> None:
    mark = run.directory / identity_mark(run.job)
    try:
        for other in run.directory.glob(f"{MARK}*"):
            if other != mark:
                other.unlink()
        if not os.path.lexists(mark):
            mark.open("x").close()
    except OSError as error:
        raise RunError(f"{mark} cannot be written: {error.strerror}") from error
    run.files.write_record(run.record, type(run.job).__setpoint__.schema)


def dropped_since(
    run: Run, position: Position, offset: int, reached: Position | None = None
) -> dict[str, Any]:
    """Entry of an event for steps lost after a checkpoint, for goodput.

    Arguments:
        position: the position of the checkpoint.
        offset: length of `metrics.jsonl` when the checkpoint was saved.
        reached: current position; None: read it from the record.

    Returns:
        `dropped`; empty if no step is lost.
    """
    lost = dropped(
        readable_rows(run.files.events) if reached is None else [],
        readable_rows(run.files.metrics, offset),
        position.step,
        position.seconds,
        None if reached is None else (reached.step, reached.seconds),
    )
    return {} if lost is None else {"dropped": lost}


def _facts(run: Run) -> dict[str, Any]:
    """Facts of the job for the event of a start or a resume."""
    facts: dict[str, Any] = {
        "began": time_of(run.began),
        "seconds": round(run.started.seconds, 3),
        "fingerprint": fingerprint(run.identity),
        "version": VERSION,
    }
    if run.components.pretrained is not None:
        facts["pretrained"] = run.components.pretrained
    facts["groups"] = [
        group.to_json()
        for group in gathered(run.job.optimizer, run.components.model, run.components.all_trained)
    ]
    if run.components.adapter is not None:
        facts["adapter"] = run.components.adapter.to_json()
    facts["utilization"] = run.utilization.record()
    if run.program_callbacks:
        facts["callbacks"] = list(run.program_callbacks)
    cautions = cautions_of(run.identity)
    if cautions:
        facts["cautions"] = [caution.to_json() for caution in cautions]
    return facts


def _notes(run: Run) -> Iterator[str]:
    """Notes about the job, before it trains."""
    grown = (run.components.pretrained or {}).get("grown")
    if grown is not None:
        yield (
            f"model: the vocabulary grows from {grown['from']} to {grown['to']} tokens; new rows "
            f"are initialized to the mean of the rows in {run.job.model.pretrained}"
        )
    if run.components.adapter is not None:
        yield f"adapter: {run.components.adapter.line()}"
    use = run.utilization
    if use.unknown is not None and use.peak is not None:
        yield f"mfu will be null: {use.unknown}"
    for caution in cautions_of(run.identity):
        yield f"caution: {caution.line()}"
    if lost := [
        name for name in _program_callbacks_before(run) if name not in run.program_callbacks
    ]:
        yield (
            f"callbacks passed as objects to the previous session, train(callbacks=...), are not "
            f"recorded and will not be called: {', '.join(lost)}"
        )
    for line in overridden(run.job):
        yield f"overridden: {line}"


def _program_callbacks_before(run: Run) -> list[str]:
    """The classes of the last session's callback objects."""
    if run.accepted is None:
        return []
    rows = [row for row in readable_rows(run.files.events) if row.get("event") in BEGINNINGS]
    names = rows[-1].get("callbacks") if rows else None
    return [str(name) for name in names] if isinstance(names, list) else []


def _finished(run: Run, accepted: Accepted) -> str:
    """Note about a finished run, with the step and the reason."""
    notes = "nothing is left to train" + "; nothing accepted" * accepted.learned
    finished = f"{run.directory} is finished at step {run.resumed_at}"
    if run.reason is not None:
        finished += f": {run.reason}"
        notes += (
            "; to train further, raise evaluation.early_stopping.patience or set "
            "evaluation.early_stopping to null"
        )
    return f"{finished}; {notes}"


# Differences that may explain those of a resumed run; others, such as the time, are normal.
COMPARED = ("code", "python", "packages", "system", "processor", "torch", "threads", "variables")

OF_DOCUMENTS = ("data.sources", "data.held_out", "data.validation")
"""Fields that `--accept` may name if documents differ, besides the section `data`."""

LISTED = 100_000
"""Maximum number of documents per split to list in the record."""
LISTED_PREPARED = 1_000
"""The same for prepared data, whose files are known: listing 90,000 takes half a second."""


def _write_environment(run: Run, facts: Mapping[str, Any]) -> None:
    """Record the environment of the first session, with the current documents.

    Raises:
        RunError: the record cannot be written.
    """
    data = {side: describe(data) for side, data in _splits(run.components)}
    run.files.write_json(ENVIRONMENT, {**facts, "data": data})


def compare_with_record(
    run: RunDirectory,
    accepted: Accepted,
    components: Components,
    job: Job,
    accept: Sequence[str] = (),
) -> tuple[Accepted, dict[str, Any]]:
    """Compare data and environment with those in the run's record, without writing anything.

    The record contains the environment of the first session; later changes are in the resume event.

    Arguments:
        accepted: the result of `check_contract`.

    Returns:
        the accepted differences including data, and the differences of the environment.

    Raises:
        SetpointError: the data differs and is not accepted, or a path to accept has no effect.
    """
    recorded = _read_environment(run)
    data = compare_data(recorded["data"], components)
    accepted_paths = _accepted_documents(accept)
    if not accepted_paths:
        refuse_data(str(run.path), data, job, accept)
    used = accepted_paths if data else ()
    idle = tuple(path for path in accepted.idle if path not in used)
    accepted = replace(accepted, data=tuple(data), idle=idle)
    # Only tokens show that changed files contain the same documents.
    other_files = any(
        (recorded["data"].get(side) or {}).get("prepared") != data.prepared
        for side, data in _splits(components)
    )
    refuse_idle(run, accepted, accepted_paths if other_files else ())
    today = json.loads(json.dumps(environment(secrets=declared_secrets(job))))
    changed = {
        key: {"recorded": recorded.get(key), "today": today.get(key)}
        for key in COMPARED
        if recorded.get(key) != today.get(key)
    }
    return accepted, changed


def _accepted_documents(accept: Sequence[str]) -> list[str]:
    """Accepted paths that allow other documents."""
    return [
        path
        for path in accept
        if path == "data" or any(within(path.strip(), section) for section in OF_DOCUMENTS)
    ]


def refuse_outdated(run: Run) -> None:
    """Refuse to resume with changed input files before they are tokenized, which may take hours.

    Whether their documents differ is found by `compare_with_record`. Neither looks at the texts of
    evaluations.

    Raises:
        SetpointError: files of prepared data were added, removed or changed in size.
    """
    data = run.job.data
    if run.accepted is None or data.prepare is None or _accepted_documents(run.accept):
        return
    recorded, changes = _read_environment(run.files)["data"], list[dict[str, Any]]()
    for request in requests_of(data):
        prepared = (recorded.get(request.side) or {}).get("prepared")
        if prepared is not None:
            names = outdated_inputs(request, Path(prepared), data.prepare)
            if any(names):
                changes.append({"side": request.side, **dict(zip(CHANGES, names, strict=True))})
    if not changes:
        return
    folder = str(run.directory)
    words = "; ".join(describe_data(side, "input files") for side in changes)
    command, path = _accepting_command(folder, changes, run.job, run.accept)
    raise ContractRefused(
        f"{folder} cannot be resumed: the files of its prepared data have changed: {words}.\n"
        f"  Put the files back, or train a separate run.\n"
        f"  To prepare the current files and resume this run with them: {command}",
        command,
        [path],
    )


def keep_diffs(run: RunDirectory, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Move the code diffs of the environment to separate files, so that events stay small.

    Arguments:
        run: the directory, locked; the files are `logs/code-DIGEST.diff`.

    Returns:
        the environment with digests in place of diffs; diffs of the first session are in
        `environment.json`.
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


def _splits(components: Components) -> Iterator[tuple[str, DataIdentity]]:
    """The splits of the data."""
    yield "train", components.train_data.identity
    if components.held_out is not None:
        yield "held_out", components.held_out.identity


def describe(data: DataIdentity) -> dict[str, Any]:
    """Record of a split of the data; if there are too many documents, they are only counted."""
    facts: dict[str, Any] = {"bytes": data.bytes, "tokens": data.tokens, "digest": data.digest}
    most = LISTED
    if data.prepared is not None:
        facts["prepared"], most = data.prepared, LISTED_PREPARED
    if len(data.files) > most:
        return {**facts, "documents": len(data.files), "files": [], "inputs": _inputs(data)}
    return {**facts, "files": [list(file) for file in data.files]}


def _inputs(data: DataIdentity) -> list[str]:
    """The input files, each with a digest, when there are too many documents to list."""
    if data.prepared is not None:
        inputs = read_inputs(Path(data.prepared))
    else:
        digests: dict[str, Any] = {}
        for name, _, digest in data.files:
            file = name.partition("#")[0]
            digests.setdefault(file, hashlib.sha256()).update(f"{name} {digest}\n".encode())
        inputs = [f"{file}\t{digest.hexdigest()}" for file, digest in digests.items()]
    return inputs if len(inputs) <= LISTED else []


def compare_data(recorded: Mapping[str, Any], components: Components) -> list[dict[str, Any]]:
    """Compare the current documents with the recorded ones.

    Returns:
        an entry for each split that differs: `side`, and the names of documents that are `gone`,
        `new` or `changed`.
    """
    changes: list[dict[str, Any]] = []
    for side, data in _splits(components):
        entry = recorded.get(side)
        if entry is None or entry["digest"] == data.digest:
            continue
        if "documents" in entry or len(data.files) > LISTED:
            same_kind = (entry.get("prepared") is None) == (data.prepared is None)
            before, now = entry.get("inputs") or [], _inputs(data)
            names = changed_names(before, now) if before and now and same_kind else ([], [], [])
            changes.append({"side": side, **dict(zip(CHANGES, names, strict=True))})
            continue
        before = {name: digest for name, _, digest in entry["files"]}
        now = {name: digest for name, _, digest in data.files}
        both = [name for name in now if name in before]
        changes.append(
            {
                "side": side,
                "gone": [name for name in before if name not in now],
                "new": [name for name in now if name not in before],
                "changed": [name for name in both if now[name] != before[name]],
            }
        )
    return changes


def refuse_data(
    folder: str, changes: Sequence[Mapping[str, Any]], job: Job, accept: Sequence[str] = ()
) -> None:
    """Refuse to resume with different documents, naming them.

    Arguments:
        changes: the result of `compare_data`.
        accept: accepted paths, for the command in the message.

    Raises:
        SetpointError: there are changes.
    """
    if not changes:
        return
    words = "; ".join(describe_data(side) for side in changes)
    command, path = _accepting_command(folder, changes, job, accept)
    raise ContractRefused(
        f"{folder} cannot be resumed: its data has changed since it was trained: {words}.\n"
        f"  Put the files back, or train a separate run.\n"
        f"  To resume this run anyway, with the current files: {command}",
        command,
        [path],
    )


def _accepting_command(
    folder: str, changes: Sequence[Mapping[str, Any]], job: Job, accept: Sequence[str]
) -> tuple[str, str]:
    """The command that resumes a run with changed data, and the path that it accepts."""
    only_held_out = all(side["side"] != "train" for side in changes)
    path = "data.validation" if only_held_out and job.data.validation else "data.sources"
    command = f"setpoint train {shlex.quote(folder)} --accept {','.join([*accept, path])}"
    return command, path


def refuse_idle(run: RunDirectory, accepted: Accepted, needed: Sequence[str] = ()) -> None:
    """Refuse accepted paths that never had an effect.

    Arguments:
        accepted: the result of `check_contract`.
        needed: paths without which the resume may be refused before the data is tokenized.

    Raises:
        SetpointError: nothing differs under a path, and no earlier session accepted anything there;
            a requeued command may repeat it.
    """
    rows = readable_rows(run.events)
    before = [item["path"] for row in rows for item in row.get("accepted", ())]
    before += ["data" for row in rows if row.get("data")]
    for path in accepted.idle:
        if path not in needed and not any(
            within(item, path) or within(path, item) for item in before
        ):
            why = "nothing there differs from the record of"
            if any(within(item.path, path) for item in accepted.differences):
                why = "the fields that differ there may change without it on a resume of"
            raise SetpointError(f"--accept {path} has no effect: {why} {run.path}; remove it")


def _read_environment(run: RunDirectory) -> dict[str, Any]:
    path = run.path / ENVIRONMENT
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record["data"]["train"]["files"], list):
            raise TypeError("data.train.files is not a list")
        return record
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetpointError(f"{path}: the record of the run cannot be read: {error}") from None
