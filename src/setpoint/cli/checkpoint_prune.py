"""`setpoint checkpoint prune`: what the rules of retention leave, and removal of the rest."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from setpoint.checkpoint.config import Checkpoint
from setpoint.checkpoint.folder import (
    Positions,
    Retention,
    directory_name,
    protected_by_pointers,
    remove,
)
from setpoint.checkpoint.places import (
    CHECKPOINTS,
    CheckpointEntry,
    CheckpointPlace,
    find_place,
    survey,
)
from setpoint.cli.checkpoint import RUN_OR_URL_HELP, folder_of
from setpoint.cli.options import JSON, Arguments, Command, Option, refuse_overrides
from setpoint.cli.output import table
from setpoint.config import (
    CONFIG,
    ORIGINS,
    Invalid,
    RunError,
    SetpointError,
    is_record,
    read_record,
    resolve,
)
from setpoint.files.lock import RunLock
from setpoint.hub.urls import is_url
from setpoint.ops.remote_survey import RemotePlace
from setpoint.track.jsonl import EventLog
from setpoint.track.run_directory import refuse_linked_folders
from setpoint.train.config import Job
from setpoint.units import Period
from setpoint.units.size import in_units

KEEP = Option("--keep", "How many of the newest stay, or all; default: checkpoint.keep.", "N")
KEEP_EVERY = Option(
    "--keep-every", "An interval such as '1000 steps', or none; default: as recorded.", "PERIOD"
)
YES = Option("--yes", "Remove what has no reason to stay.")
COMMAND = Command(
    "checkpoint prune",
    "RUN",
    "Print which checkpoints of a run stay and why, by the rules of its record (checkpoint.keep,\n"
    "keep_every and at) or by others, and which would be removed. Nothing is removed without\n"
    "--yes. What latest and best name stays, and so does what is damaged or was set aside. A\n"
    "run that is being trained is refused, but not at a URL, where checkpoint.remote.keep counts.\n"
    + RUN_OR_URL_HELP,
    [KEEP, KEEP_EVERY, YES, JSON],
    [
        ("setpoint checkpoint prune runs/tiny-3fa94c21", "what would be removed"),
        (
            "setpoint checkpoint prune runs/tiny-3fa94c21 --keep 1 --yes",
            "keep the newest, the best",
        ),
        ("setpoint checkpoint prune runs/a --keep 3 --keep-every '1000 steps'", "other rules"),
    ],
)


class Fate(NamedTuple):
    """A checkpoint and why it stays; without a reason it may go."""

    found: CheckpointEntry
    reasons: list[str]


@COMMAND
def run(arguments: Arguments) -> int:
    """Print what stays, and remove the rest if asked for.

    Raises:
        RunError: if something cannot be removed.
    """
    refuse_overrides(arguments)
    if is_url(arguments.positional[0]):
        return _at_url(arguments)
    place = find_place(arguments.positional[0])
    if place.only is not None:
        raise SetpointError(
            f"{arguments.positional[0]} is one checkpoint; give its run or {place.root}"
        )
    own = place.root.parent if place.root.name == CHECKPOINTS else None
    run = own if own is not None and is_record(str(own)) else None
    section = None if run is None else resolve(read_record(Job, str(run))[0]).checkpoint
    rule = _rule(arguments, section, section and section.keep)
    removes = arguments.has(YES.name)
    with ExitStack() as ending:
        if removes and run is not None:
            refuse_linked_folders(run)
            ending.callback(RunLock(run / ".lock").release)
        fates = _fates(place.root, rule)
        gone = [fate.found for fate in fates if not fate.reasons]
        if removes and gone:
            _remove(gone, run)
    _show(arguments, str(place.root), fates, removes)
    return 0


def _show(arguments: Arguments, root: str, fates: list[Fate], removes: bool) -> None:
    if arguments.has(JSON.name):
        import json

        print(json.dumps(_facts(root, fates, removes), indent=2))
    else:
        print("\n".join(_lines(root, fates, removes)))


def _at_url(arguments: Arguments) -> int:
    """The same, of what uploads have sent; unfinished ones are left alone."""
    place = folder_of(arguments.positional[0])
    assert isinstance(place, RemotePlace)
    if place.only is not None:
        raise SetpointError(
            f"{arguments.positional[0]} is one checkpoint; give its run or {place.root}"
        )
    section, removes = None, arguments.has(YES.name)
    with TemporaryDirectory() as folder:
        for name in (ORIGINS, CONFIG):
            place.run.download_record(name, Path(folder) / name)
        if is_record(folder):
            section = resolve(read_record(Job, folder)[0]).checkpoint
    remote = None if section is None else section.remote
    keep = section and (section.keep if remote is None else remote.keep)
    rule = _rule(arguments, section, keep)
    reasons, unfinished = place.run.reasons(rule)
    fates = [
        Fate(each, reasons.get(each.step, ["cannot be read"]))
        for each in place.survey()
        if each.kind == "checkpoint"
    ]
    if removes and any(not fate.reasons for fate in fates):
        place.run.prune(rule, unfinished)
    _show(arguments, place.root, fates, removes)
    return 0


def _rule(arguments: Arguments, section: Checkpoint | None, keep: int | None) -> Retention:
    """The rules of the record, and those that are given instead."""
    given, interval = arguments.value(KEEP.name), arguments.value(KEEP_EVERY.name)
    if section is None and given is None:
        raise SetpointError(
            "there is no record of a run beside these checkpoints, so it must be said how many of "
            "the newest stay: --keep N"
        )
    if given is not None:
        keep = None if given == "all" else arguments.integer(KEEP.name)
    every = section.keep_every if section is not None else None
    if interval is not None:
        every = None if interval == "none" else _interval(interval)
    return Retention(keep, every, None if section is None else section.at)


def _interval(text: str) -> Period:
    try:
        every = Period(text)
    except Invalid as error:
        valid = ", ".join(error.valid[:4])
        raise SetpointError(f"{KEEP_EVERY.name} {error.message}.\nValid: none, {valid}") from None
    if every.unit == "last_step":
        raise SetpointError(f"{KEEP_EVERY.name} {text} is no interval; none keeps none of them")
    return every


def _fates(root: Path, rule: Retention) -> list[Fate]:
    protected = protected_by_pointers(root)
    if protected is None:
        raise RunError(f"latest or best in {root} cannot be read, so nothing may be removed")
    listed = (each for each in survey(CheckpointPlace(root)) if each.kind == "checkpoint")
    found = {each.step: each for each in listed}
    # What is damaged may be all that is left of its step.
    protected |= {
        step: "cannot be read" if each.manifest is None else "damaged"
        for step, each in found.items()
        if each.damage
    }
    reasons = rule.reasons(found, protected, Positions(root).distance)
    return [Fate(found[step], why) for step, why in reasons.items()]


def _remove(gone: list[CheckpointEntry], run: Path | None) -> None:
    if run is not None:
        log = EventLog(run / "events.jsonl")
        log.write("prune", checkpoints=[each.path.name for each in gone])
        log.close()
    for each in gone:
        try:
            remove(each.path, directory_name(each.step))
        except OSError as error:
            raise RunError(f"{each.path} cannot be removed: {error.strerror}") from error


def _lines(root: str, fates: list[Fate], removes: bool) -> list[str]:
    if not fates:
        return [f"no checkpoints in {root}"]
    gone = [fate.found for fate in fates if not fate.reasons]
    word = "removed" if removes else "would be removed"
    rows = [
        [fate.found.path.name, in_units(fate.found.size),
         f"stays: {', '.join(fate.reasons)}" if fate.reasons else word]
        for fate in fates
    ]  # fmt: skip
    total = f"{len(gone)} of {len(fates)} checkpoints, {in_units(sum(each.size for each in gone))}"
    hint = "; --yes removes them" if gone and not removes else ""
    return [table(rows), f"{word}: {total}{hint}"]


def _facts(root: str, fates: list[Fate], removes: bool) -> dict[str, Any]:
    return {
        "folder": root,
        "removed": removes,
        "checkpoints": [
            {
                "checkpoint": fate.found.path.name,
                "step": fate.found.step,
                "bytes": fate.found.size,
                "stays": bool(fate.reasons),
                "reasons": fate.reasons,
            }
            for fate in fates
        ],
    }
