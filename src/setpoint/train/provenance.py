"""Environment and data of a run: recorded, and compared with a record."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from setpoint.config import SetpointError
from setpoint.config.words.names import within
from setpoint.data.document import DataIdentity
from setpoint.data.store import changed_names, read_inputs
from setpoint.files.atomic import write_text
from setpoint.track.environment import environment
from setpoint.track.jsonl import readable_rows
from setpoint.track.redact import declared_secrets
from setpoint.track.run_directory import RunDirectory
from setpoint.train.build.components import Components
from setpoint.train.config import Job
from setpoint.train.contract import CHANGES, Accepted, ContractRefused, describe_data

ENVIRONMENT = "environment.json"
# Differences that may explain those of a resumed run; others, such as the time, are usual.
COMPARED = ("code", "python", "packages", "system", "processor", "torch", "threads", "variables")

OF_DOCUMENTS = ("data.sources", "data.held_out", "data.validation")
"""Fields that `--accept` may name if documents differ, beside the section `data`."""

LISTED = 100_000
"""Maximum number of documents per split to list in the record."""
LISTED_PREPARED = 1_000
"""The same for prepared data, whose files are known: listing 90,000 takes half a second."""


def write_data(run: RunDirectory, components: Components) -> None:
    """Update the record of the data to today's documents.

    Raises:
        RunError: if it cannot be written.
    """
    facts = {**_read(run), "data": {side: describe(data) for side, data in _sides(components)}}
    run.write_json(ENVIRONMENT, facts)


def write_environment(run: RunDirectory, components: Components, job: Job) -> None:
    """Record environment and data of a new run.

    Raises:
        RunError: if it cannot be written.
    """
    facts = environment(secrets=declared_secrets(job))
    facts["data"] = {side: describe(data) for side, data in _sides(components)}
    run.write_json(ENVIRONMENT, facts)


def compare_with_record(
    run: RunDirectory,
    accepted: Accepted,
    components: Components,
    job: Job,
    accept: Sequence[str] = (),
) -> tuple[Accepted, dict[str, Any]]:
    """Compare the data and the environment with those of the run's record; nothing is written.

    The record has the environment of the first session; changes since are part of the event of the
    resume.

    Arguments:
        accepted: what `check_contract` returned.

    Returns:
        the accepted differences including data, and the differences of the environment.

    Raises:
        SetpointError: if the data differs and is not accepted, or a path to accept has no effect.
    """
    recorded = _read(run)
    data = compare_data(recorded["data"], components)
    asked = [
        path for path in accept if any(within(path.strip(), section) for section in OF_DOCUMENTS)
    ]
    if not asked and "data" not in accept:
        refuse_data(str(run.path), data, accept)
    used = (*asked, "data") if data else ()
    idle = tuple(path for path in accepted.idle if path not in used)
    accepted = replace(accepted, data=tuple(data), idle=idle)
    refuse_idle(run, accepted)
    today = json.loads(json.dumps(environment(secrets=declared_secrets(job))))
    changed = {
        key: {"recorded": recorded.get(key), "today": today.get(key)}
        for key in COMPARED
        if recorded.get(key) != today.get(key)
    }
    return accepted, changed


def keep_diffs(run: RunDirectory, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Move today's code diffs to separate files, so that events stay small.

    Arguments:
        run: the directory, locked; the files are `logs/code-DIGEST.diff`.

    Returns:
        the same with digests in place of diffs; those of the first session are in
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


def _sides(components: Components) -> Iterator[tuple[str, DataIdentity]]:
    """The splits of the data."""
    yield "train", components.train_data.identity
    if components.held_out is not None:
        yield "held_out", components.held_out.identity


def describe(data: DataIdentity) -> dict[str, Any]:
    """Record of a split of the data; too many documents are only counted."""
    facts: dict[str, Any] = {"bytes": data.bytes, "tokens": data.tokens, "digest": data.digest}
    most = LISTED
    if data.prepared is not None:
        facts["prepared"], most = data.prepared, LISTED_PREPARED
    if len(data.files) > most:
        return {**facts, "documents": len(data.files), "files": [], "inputs": _inputs(data)}
    return {**facts, "files": [list(file) for file in data.files]}


def _inputs(data: DataIdentity) -> list[str]:
    """The files of too many documents, each with a digest."""
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
    """Compare today's documents with the recorded ones.

    Returns:
        an entry for each split that differs: `side`, and the names of documents that are `gone`,
            `new` or `changed`.
    """
    changes: list[dict[str, Any]] = []
    for side, data in _sides(components):
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
    folder: str, changes: Sequence[Mapping[str, Any]], accept: Sequence[str] = ()
) -> None:
    """Refuse to resume with other documents, naming them.

    Arguments:
        changes: what `compare_data` returned.
        accept: accepted paths, for the command to type.

    Raises:
        SetpointError: if there is any.
    """
    if not changes:
        return
    words = "; ".join(describe_data(side) for side in changes)
    trained = any(side["side"] == "train" for side in changes)
    path = "data.sources" if trained else "data.validation"
    command = f"setpoint train {shlex.quote(folder)} --accept {','.join([*accept, path])}"
    raise ContractRefused(
        f"{folder} cannot be resumed: its data is not what it was trained on: {words}.\n"
        f"  Put the files back, or train a run of its own.\n"
        f"  To resume this run all the same, with today's: {command}",
        command,
        [path],
    )


def refuse_idle(run: RunDirectory, accepted: Accepted) -> None:
    """Refuse paths to accept that never had an effect.

    Arguments:
        accepted: what `check_contract` returned.

    Raises:
        SetpointError: if nothing differs under a path, and no earlier session accepted anything
            there; a requeued command may repeat it.
    """
    rows = readable_rows(run.events)
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
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record["data"]["train"]["files"], list):
            raise TypeError("data.train.files is not a list")
        return record
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetpointError(f"{path}: the record of the run cannot be read: {error}") from None
