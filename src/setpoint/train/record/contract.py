"""The resume contract: what may differ between a run's record and today's configuration."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from setpoint.checkpoint.layout import list_checkpoints
from setpoint.checkpoint.pointers import readable_pointer
from setpoint.config import (
    ABSENT,
    BUDGET,
    CONFIG,
    DERIVED,
    IDENTITY,
    MINIMAL,
    Difference,
    SetpointError,
    all_fields,
    leaves,
    load_record,
    nearest,
    recorded_differences,
    within,
)
from setpoint.precision.config import LossScale
from setpoint.track.jsonl import read_jsonl
from setpoint.train.config import Job
from setpoint.units import Duration

CHANGES = ("gone", "new", "changed")
LOSS_SCALE = "precision.loss_scale.initial"
MANY = 8
"""Above so many values a command to copy accepts their sections."""

AT_START = ("model.pretrained", "model.init_std", "model.residual_init", LOSS_SCALE)
"""Fields that are used at the start of a run and never again."""

RULE = r"optimizer\.(groups(\.\d+(\.pattern)?)?|no_decay|no_decay_patterns|adamw_patterns)(\.\d+)?"
"""The fields that decide which group a parameter falls into."""


class ContractRefused(SetpointError):
    """A refused resume that `--accept` would let pass.

    Arguments:
        command: what goes on all the same; the command line knows more of what was typed.
    """

    def __init__(self, message: str, command: str, paths: Sequence[str]) -> None:
        super().__init__(message)
        self.command = command
        self.paths = tuple(paths)


@dataclass(frozen=True, slots=True)
class Accepted:
    """What differs from the record, and may.

    Arguments:
        differences: longer budgets, run-time settings, and identity fields as far as they were
            accepted by name.
        notes: what has changed since the record's schema.
        data: for each side of the data whose documents differ, how many and which.
    """

    differences: list[Difference]
    idle: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    data: tuple[dict[str, Any], ...] = ()

    @property
    def learned(self) -> bool:
        """Whether an identity field or the data differs."""
        return bool(self.data) or any(item.role is IDENTITY for item in self.differences)


def check_contract(
    folder: str, job: Job, accept: Sequence[str] = (), given: bool = True
) -> Accepted:
    """Compare a run's record with today's configuration, field by field under each role.

    Arguments:
        accept: fields and sections whose identity fields may differ, as `--accept` names them.

    Raises:
        SetpointError: with the differences, if an identity field differs that is not accepted, or
            the budget shrinks; and for a path to accept that is none.
    """
    found = recorded_differences(folder, job)
    paths = [_known(path, job, found) for path in accept]
    for item in found:
        if item.path == "duration" and _shrinks(item.left, job):
            raise SetpointError(_shorter(folder, item, given))
    identity = [difference for difference in found if difference.role is IDENTITY]
    refused = [item for item in identity if not any(within(item.path, path) for path in paths)]
    late = _too_late(folder, identity)
    if refused:
        raise _refusal(folder, refused, late, given)
    for item in late:
        path = next(path for path in paths if within(item.path, path))
        raise SetpointError(
            f"--accept {path}: {item.path} = {_plain(item.right)} ({item.right_origin}) would have "
            f"no effect: it is used at the start of a run, and {folder} resumes from a "
            f"checkpoint.\nValid: {_plain(item.left)}, as it was saved."
        )
    kept = [item for item in found if item.left is not ABSENT or item.role is IDENTITY]
    idle = [path for path in paths if not any(within(item.path, path) for item in identity)]
    return Accepted(kept, tuple(idle), tuple(load_record(Job, folder).notes))


def _shorter(folder: str, item: Difference, given: bool) -> str:
    """Why a run does not become shorter, where it stands, and what to type instead."""
    run = shlex.quote(folder)
    anew = "the same command with --name NAME"
    if given:
        file = shlex.quote(str(Path(folder, MINIMAL)))
        anew = f"setpoint train {file} --duration {_typed(item.right)} --name NAME"
    begun = _lengthened_from(folder, item.left)
    was = "" if begun is None else f", lengthened from {begun}"
    standing = _standing(folder)
    if standing.startswith(FINISHED):
        then = f"  {folder} {standing}; nothing is left to train.\n"
    else:
        then = f"  {folder} {standing}.\n  To resume it: setpoint train {run}\n"
    return (
        f"{folder} cannot be resumed: a budget may grow, not shrink\n\n"
        f"  duration\n"
        f"    saved      {_side(item.left, item.left_origin)}{was}\n"
        f"    requested  {_side(item.right, item.right_origin)}\n\n"
        f"{then}"
        f"  To train the shorter one anew: {anew}"
    )


def _rows(folder: str) -> list[dict[str, Any]]:
    log = Path(folder, "events.jsonl")
    return read_jsonl(log, damaged=[]) if log.exists() else []


def _lengthened_from(folder: str, now: object) -> str | None:
    """The duration that a run began with; None where it still has it."""
    changes = [item for row in _rows(folder) for item in row.get("accepted", ())]
    first = next((item["left"] for item in changes if item["path"] == "duration"), now)
    return None if first == now else _plain(first)


FINISHED = "is finished"


def _standing(folder: str) -> str:
    """How far a run has come, after its name."""
    sessions = ("start", "resume", "restart", "end")
    rows = [row for row in _rows(folder) if row.get("event") in sessions]
    if rows and rows[-1]["event"] == "end" and rows[-1].get("status") == 0:
        return f"{FINISHED} at step {rows[-1].get('step')}"
    step = readable_pointer(Path(folder, "checkpoints"), "latest")
    return "has no checkpoint yet" if step is None else f"is at step {step}"


def _too_late(folder: str, identity: list[Difference]) -> list[Difference]:
    """The differences that a run which goes on from a checkpoint cannot take up."""
    if not list_checkpoints(Path(folder, "checkpoints")):
        return []
    found = [item for item in identity if item.path in AT_START]
    scaled = not any(item.path == "precision.compute" for item in identity)
    usual = LossScale().initial

    def is_late(item: Difference) -> bool:
        if item.path != LOSS_SCALE:
            return ABSENT not in (item.left, item.right)
        # Without the section the scale starts at the default; in another format there is none.
        left, right = (usual if side is ABSENT else side for side in (item.left, item.right))
        return scaled and left != right

    return [item for item in found if is_late(item)]


def _refusal(
    folder: str, refused: list[Difference], late: list[Difference], given: bool
) -> SetpointError:
    lines = [
        f"{folder} cannot be resumed: {len(refused)} identity value{'s' * (len(refused) != 1)} "
        f"differ{'s' * (len(refused) == 1)} from its record",
        "",
    ]
    for item in refused:
        lines.append(f"  {item.path}")
        lines.append(f"    saved      {_side(item.left, item.left_origin)}")
        lines.append(f"    requested  {_side(item.right, item.right_origin)}")
    run = shlex.quote(folder)
    lines.append("")
    if given:
        lines.append(
            "  Take the change back, or train it as a run of its own from a preset or file."
        )
    else:
        lines.append(f"  To resume it as it was saved: setpoint train {run}")
    paths, command = _accepting(refused), ""
    hopeless = _hopeless(refused, late)
    if hopeless is not None:
        lines.append(f"  --accept does not help: {hopeless}.")
    else:
        # Of a directory that was given, what was typed beside it is known to who has read it.
        changes = [] if given else [i for i in refused if not i.right_origin.startswith(DERIVED)]
        words = [f"--{item.path} {_typed(item.right)}" for item in changes]
        words += [f"--accept {path}" for path in paths]
        command = " ".join([f"setpoint train {run}", *words])
        lines.append(f"  To resume this run all the same: {command}")
    if any(item.path == "schedule.evaluated_on" for item in refused):
        lines.append(
            "  schedule.evaluated_on follows from the section evaluation: a plateau schedule sets "
            "the rate by what is evaluated, and how often."
        )
    horizon = next((item.left for item in refused if item.path == "schedule.horizon"), None)
    if isinstance(horizon, str | list):
        text = ", ".join(horizon) if isinstance(horizon, list) else horizon
        lines.append(
            f'  To stay on the recorded learning-rate curve, add --schedule.horizon "{text}".'
        )
    return ContractRefused("\n".join(lines), command, paths)


def _hopeless(refused: list[Difference], late: list[Difference]) -> str | None:
    """Why a run cannot go on with what differs; None if it may."""
    paths = [item.path for item in refused]
    if late:
        names = " and ".join(item.path for item in late)
        return f"{names} {'are' if len(late) > 1 else 'is'} used at the start of a run only"
    if "optimizer.type" in paths or "optimizer.target" in paths:
        return "the checkpoints hold the state of another optimizer"
    if any(re.fullmatch(RULE, path) for path in paths):
        return "the checkpoints hold the state of other groups of parameters"
    return None


def _accepting(refused: list[Difference]) -> list[str]:
    """What has to be accepted: the values, or the sections where they are many."""
    paths = [item.path for item in refused]
    if len(paths) > MANY:
        paths = list(dict.fromkeys(path.partition(".")[0] for path in paths))
    return paths


def _typed(value: object) -> str:
    """A value as it is typed after a flag."""
    if value is ABSENT:
        return "null"
    return shlex.quote(value if isinstance(value, str) else json.dumps(value))


def refuse_renaming(folder: str, accepted: Accepted) -> None:
    """Refuse to give a run another name or place while its directory is given as well.

    Arguments:
        accepted: what `check_contract` returned.

    Raises:
        SetpointError: naming the field, which would have no effect.
    """
    for item in accepted.differences:
        if item.path in ("name", "experiment", "workspace"):
            raise SetpointError(
                f"{item.path} = {item.right!r} ({item.right_origin}) has no effect: the run is "
                f"that of {folder}. Leave it out, or train a preset or file under the new name"
            )


def describe_accepted(accepted: Accepted) -> list[str]:
    """The accepted differences as lines for people.

    Arguments:
        accepted: what `check_contract` returned.

    Returns:
        a line for each identity field and for each budget, one for all settings of the
        run time together, and one for each path under which there was nothing to accept.
    """
    lines = list(accepted.notes)
    runtime: list[str] = []
    for item in accepted.differences:
        change = f"{item.path}: {_plain(item.left)} -> {_plain(item.right)}"
        if item.role is IDENTITY:
            origin = f" ({_whence(item.right_origin)})" if item.right_origin else ""
            lines.append(f"accepted by --accept: {change}{origin}")
        elif item.role is BUDGET:
            lines.append(f"accepted: {change} ({_whence(item.right_origin)})")
        else:
            runtime.append(change)
    lines += [f"accepted by --accept: {describe_data(side)}" for side in accepted.data]
    if runtime:
        lines.append(f"run-time settings that changed: {', '.join(runtime)}")
    return lines + describe_idle(accepted)


def describe_data(side: Mapping[str, Any]) -> str:
    """Format the documents in which a side of the data differs.

    Arguments:
        side: an entry of `Accepted.data`.
    """
    found = [f"{len(side[kind])} {kind}" for kind in CHANGES if side[kind]]
    names = [f"{name} ({kind})" for kind in CHANGES for name in side[kind]]
    shown = ", ".join(names[:5]) + (f", and {len(names) - 5} more" if len(names) > 5 else "")
    return f"documents of {side['side']}: {', '.join(found) or 'other tokens'}" + (
        f": {shown}" if names else ""
    )


def _whence(origin: str) -> str:
    """An origin after `from`; what is derived says itself from what."""
    return origin if origin.startswith(DERIVED) else f"from {origin}"


def describe_idle(accepted: Accepted) -> list[str]:
    """The paths under which there was nothing to accept, as lines for people.

    Arguments:
        accepted: what `check_contract` returned.
    """
    return [f"--accept {path}: nothing differs there from the record" for path in accepted.idle]


def _known(path: str, job: Job, found: Sequence[Difference]) -> str:
    """A path to accept, in one spelling; refused if it is neither a field nor a section."""
    whole = path.strip().replace("-", "_")
    declared = [name for name, _ in all_fields(Job)]
    here = [leaf.key for leaf in leaves(job)] + [item.path for item in found]
    present = {*here, *(key.rpartition(".")[0] for key in here)} - {""}
    known = {*declared, *present}
    if whole in known:
        return whole
    if "," in whole and all(part.strip() in known for part in whole.split(",")):
        each = " ".join(f"--accept {part.strip()}" for part in whole.split(","))
        raise SetpointError(f"--accept {path}: it takes one field or section. Repeat it: {each}")
    # Other variants have fields that are no part of this run.
    close = nearest(whole, sorted(present), 1)
    if not close:
        words = {name.rpartition(".")[2]: name for name in reversed([*here, *declared])}
        close = [words[word] for word in nearest(whole.rpartition(".")[2], words, 1)]
    hint = f" Did you mean {close[0]}?" if close else ""
    raise SetpointError(f"--accept {path}: the configuration has no such field or section.{hint}")


def _shrinks(recorded: object, job: Job) -> bool:
    """Whether a limit is lower than it was; steps and tokens are the same thing, counted apart.

    A limit in a unit that the record does not know is one more way to end a session, and fine.
    """
    tokens_per_update = job.batch.global_size * job.batch.sequence_length
    before = _in_tokens(Duration.read(recorded), tokens_per_update)
    now = _in_tokens(job.duration, tokens_per_update)
    return any(now[unit] < before[unit] for unit in now if unit in before)


def _in_tokens(duration: Duration, tokens_per_update: int) -> dict[str, float]:
    limits: dict[str, float] = {}
    for limit in duration.limits:
        steps = limit.unit == "steps"
        unit = "tokens" if steps else limit.unit
        count = limit.count * tokens_per_update if steps else limit.count
        limits[unit] = min(count, limits.get(unit, count))
    return limits


def _side(value: object, origin: str) -> str:
    text = "(absent)" if value is ABSENT else repr(value)
    return f"{text} ({origin})" if origin else text


def _plain(value: object) -> str:
    return "null" if value is None or value is ABSENT else str(value)


def runs_of_other_lengths(job: Job, path: Path) -> Iterator[str]:
    """Look for runs beside a new one that differ from it only in how long they are.

    A schedule that is drawn over the duration is part of the identity, so that another duration
    makes a run of its own; and a run that was lengthened keeps the name of its directory.
    """
    for place in sorted(path.parent.glob(f"{job.name}-*")):
        folder = str(place)
        if place == path or not (place / CONFIG).is_file():
            continue
        try:
            differing = {item.path: item for item in recorded_differences(folder, job)}
        except SetpointError:
            continue  # it is of another kind, or cannot be read, and is left alone
        learned = [item for item in differing.values() if item.role is IDENTITY]
        derived = all(
            within(item.path, "schedule") and item.right_origin.startswith("derived")
            for item in learned
        )
        if not derived or "name" in differing or (learned and "duration" not in differing):
            continue
        saved = differing["duration"].left if "duration" in differing else str(job.duration)
        begun = _lengthened_from(folder, saved)
        if not learned and begun is None:
            continue  # a copy, or a run that was moved here
        facts = str(saved) + ("" if begun is None else f", lengthened from {begun}")
        words = [f"setpoint train {shlex.quote(folder)}"]
        outcome = "resumes it"
        if saved != str(job.duration) and not _shrinks(saved, job):
            words.append(f"--duration '{job.duration}'")
            words += ["--accept schedule"] * bool(learned)
        else:
            standing = _standing(folder)
            facts += f"; it {standing}"
            if standing.startswith(FINISHED):
                outcome = "has nothing left to train"
        kin = f"is this run ({facts})"
        if learned or "duration" in differing:
            follows = " and in what follows from it" * bool(learned)
            kin = f"differs only in its duration ({facts}){follows}"
        yield f"{folder} {kin}: `{' '.join(words)}` {outcome}; this is a new run"
