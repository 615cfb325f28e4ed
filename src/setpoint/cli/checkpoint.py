"""`setpoint checkpoint list`, `verify` and `prune`, for runs on a disk and at a URL."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from setpoint.checkpoint.config import Checkpoint
from setpoint.checkpoint.folder import (
    PointerName,
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
    FileComparison,
    compare_files,
    find_place,
    pointers_at,
    reason_of,
    survey,
)
from setpoint.cli.main import FAILED, Loading
from setpoint.cli.options import JSON, Arguments, Command, Option
from setpoint.cli.output import emit, table
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
from setpoint.hub.fetch import is_url, protocol_problem
from setpoint.ops.remote_survey import RemotePlace
from setpoint.track.jsonl import EventLog
from setpoint.track.run_directory import refuse_linked_folders
from setpoint.train.config import Job
from setpoint.units import Period
from setpoint.units.size import in_units

RUN_HELP = """
RUN is a run directory, its folder checkpoints, or one checkpoint, as in
runs/tiny-3fa94c21/checkpoints/best. The training data is not needed."""
RUN_OR_URL_HELP = f"""{RUN_HELP}
A URL of what checkpoint.remote uploads does as well: s3://bucket/runs/tiny-3fa94c21."""


class LocalPlace:
    """Checkpoints on a disk, with the methods of `RemotePlace`."""

    def __init__(self, path: str) -> None:
        self.place = find_place(path)
        self.root, self.only = str(self.place.root), self.place.only

    def survey(self) -> list[CheckpointEntry]:
        """List the checkpoints."""
        return survey(self.place)

    def pointers(self) -> dict[PointerName, int | str | None]:
        """The step that each pointer names, or the message that it is broken."""
        return pointers_at(self.place.root)

    def compare(self, entry: CheckpointEntry) -> Iterator[FileComparison]:
        """Compare the files of a checkpoint with their checksums."""
        return compare_files(entry.path)

    def is_gone(self, entry: CheckpointEntry) -> bool:
        """True if a checkpoint has been removed meanwhile."""
        return not os.path.lexists(entry.path)


def open_place(text: str) -> LocalPlace | RemotePlace:
    """The checkpoints that an argument names.

    Raises:
        SetpointError: if there are none, or a service does not answer.
    """
    if not is_url(text):
        return LocalPlace(text)
    if problem := protocol_problem(text, "remote"):
        raise SetpointError(problem)
    place = RemotePlace(text)
    if not place.run.is_there():
        raise SetpointError(
            f"{text} holds no checkpoints.\nValid: the URL of a run, of a folder of runs, or of a "
            f"checkpoint"
        )
    return place


@Command(
    "checkpoint list",
    "RUN",
    "Print a run's checkpoints: step, time and size, the ranks that wrote it, its tensors, the\n"
    "metric that selects the best (the lowest; negated where it is to rise), the names latest and\n"
    "best, and what is damaged, set aside or left by a process that died. Lengths of files are\n"
    "compared; `setpoint checkpoint verify` compares every byte. Of a URL that holds several runs\n"
    "it prints a line for each.\n" + RUN_OR_URL_HELP,
    [JSON],
    [
        ("setpoint checkpoint list runs/tiny-3fa94c21", "all checkpoints of a run"),
        ("setpoint checkpoint list runs/tiny-3fa94c21 --json", "for a program"),
    ],
)
def checkpoint_list(arguments: Arguments) -> int:
    """Print the table of checkpoints."""
    place = open_place(arguments.positional[0])
    entries, pointers = place.survey(), place.pointers()
    if not entries and isinstance(place, RemotePlace) and (runs := place.run.runs()):
        return _list_runs(place, runs, arguments)
    names = [
        [n for n, step in pointers.items() if step == entry.step and entry.kind == "checkpoint"]
        for entry in entries
    ]
    broken = [text for text in pointers.values() if isinstance(text, str)]
    rows = [_facts(*pair) for pair in zip(entries, names, strict=True)]
    headings = ("checkpoint", "written", "size", "ranks", "tensors", "metric", "")
    cells = [_cells(*pair) for pair in zip(entries, names, strict=True)]
    size = in_units(sum(entry.size for entry in entries))
    total = f"{len(entries)} in {place.root}, {size}"
    emit(
        arguments,
        {"folder": place.root, "checkpoints": rows, "problems": broken},
        f"{table(cells, headings)}\n{total}" if entries else f"no checkpoints in {place.root}",
        broken,
    )
    return 0


def _list_runs(place: RemotePlace, names: list[str], arguments: Arguments) -> int:
    """Print a row for each run in a folder of runs."""
    rows: list[dict[str, Any]] = []
    for name in names:
        run = RemotePlace(f"{place.run.url}/{name}")
        sizes = [entry.size for entry in run.survey() if entry.kind == "checkpoint"]
        rows.append({"run": name, "checkpoints": len(sizes), "bytes": sum(sizes), **run.pointers()})
    cells = [
        [row["run"], str(row["checkpoints"]), in_units(row["bytes"]),
         *("" if row[name] is None else str(row[name]) for name in ("latest", "best"))]
        for row in rows
    ]  # fmt: skip
    text = table(cells, ("run", "checkpoints", "size", "latest", "best"))
    facts = {"folder": place.run.url, "runs": rows}
    emit(arguments, facts, f"{text}\n{len(rows)} runs in {place.run.url}")
    return 0


def _cells(entry: CheckpointEntry, names: list[str]) -> list[str]:
    metric = None if entry.manifest is None else entry.manifest.metric
    moment = time.localtime(entry.written) if entry.written is not None else None
    if entry.kind == "unfinished":
        state = "unfinished: being written or removed, or left by a process that died"
    else:
        words = [*names, *([entry.kind] if entry.kind == "set aside" else [])]
        words += ["without frozen parameters"] if entry.leaves_out else []
        state = ", ".join([*words, *([f"damaged: {entry.damage}"] if entry.damage else [])])
    return [
        entry.path.name,
        "" if moment is None else time.strftime("%Y-%m-%d %H:%M:%S", moment),
        in_units(entry.size),
        "" if entry.ranks is None else str(entry.ranks),
        ", ".join(entry.stems),
        "" if metric is None else f"{metric:.6g}",
        state,
    ]


def _facts(entry: CheckpointEntry, names: list[str]) -> dict[str, Any]:
    metric = None if entry.manifest is None else entry.manifest.metric
    return {
        "checkpoint": entry.path.name,
        "kind": entry.kind,
        "step": entry.step,
        "written": entry.written,
        "bytes": entry.size,
        "ranks": entry.ranks,
        "tensors": entry.stems,
        "leaves_out_frozen": entry.leaves_out,
        # JSON has no NaN, which stands for a metric that never wins.
        "metric": metric if metric == metric else None,
        "named_by": names,
        "damage": entry.damage or None,
    }


@Command(
    "checkpoint verify",
    "RUN",
    "Read every file of a run's checkpoints and compare it with the checksum taken when it was\n"
    "written; on a disk also the weights that frozen parameters come from, where a checkpoint\n"
    "leaves these out. What is missing, unreadable or changed is named; nothing is written. What\n"
    "was set aside as damaged before is left out unless it is named. The exit status is 0 if all\n"
    "is as it was written, and 1 if something is not.\n" + RUN_OR_URL_HELP,
    [JSON],
    [
        ("setpoint checkpoint verify runs/tiny-3fa94c21", "all checkpoints of a run"),
        ("setpoint checkpoint verify runs/tiny-3fa94c21/checkpoints/latest", "one of them"),
    ],
)
def checkpoint_verify(arguments: Arguments) -> int:
    """Print each checkpoint as soon as it is verified; 1 if one is not as it was written."""
    place = open_place(arguments.positional[0])
    entries = [entry for entry in place.survey() if entry.kind == "checkpoint"]
    if not entries:
        raise SetpointError(f"there are no checkpoints in {place.root}")
    as_text = not arguments.has("--json")
    pointers = place.pointers() if place.only is None else {}
    broken = [text for text in pointers.values() if isinstance(text, str)]
    rows: list[dict[str, Any]] = []
    for entry in entries:
        if (facts := _verify(place, entry)) is not None:
            rows.append(facts)
            if as_text:
                print("\n".join(_verified_lines(facts)), flush=True)
    ok = all(facts["ok"] for facts in rows) and not broken
    facts = {"ok": ok, "folder": place.root, "checkpoints": rows, "problems": broken}
    if broken or not as_text:
        emit(arguments, facts, "\n".join(broken))
    return 0 if ok else FAILED


def _verify(place: LocalPlace | RemotePlace, entry: CheckpointEntry) -> dict[str, Any] | None:
    """The result for one checkpoint; None where the run has removed it meanwhile."""
    problem, incomplete = None, False
    files: list[FileComparison] = []
    try:
        files = list(place.compare(entry))
    except SetpointError as error:
        problem = reason_of(error)
    ok = problem is None and not any(file.problem for file in files)
    if ok and entry.leaves_out and isinstance(place, LocalPlace):
        with Loading():
            from setpoint.model.pretrained.base import verify_base
        try:
            verify_base(entry.path)
        except SetpointError as error:
            ok, incomplete, problem = False, True, str(error)
    if not ok and place.is_gone(entry):
        return None
    return {
        "checkpoint": entry.path.name,
        "step": entry.step,
        "ok": ok,
        "incomplete": incomplete,
        "problem": problem,
        "files": [
            {"name": file.name, "bytes": file.size, "problem": file.problem or None}
            for file in files
        ],
    }


def _verified_lines(facts: dict[str, Any]) -> Iterator[str]:
    name, files = facts["checkpoint"], facts["files"]
    if facts["ok"]:
        size = in_units(sum(file["bytes"] for file in files))
        yield f"{name}: ok, {len(files)} files, {size}"
        return
    problems = [facts["problem"], *(file["problem"] for file in files)]
    yield f"{name}: {'incomplete' if facts['incomplete'] else 'damaged'}"
    yield from (f"  {problem}" for problem in problems if problem)


class Decision(NamedTuple):
    """A checkpoint and the reasons to keep it; without one it is removed."""

    entry: CheckpointEntry
    reasons: list[str]


@Command(
    "checkpoint prune",
    "RUN",
    "Print which checkpoints of a run stay and why, by the rules of its record (checkpoint.keep,\n"
    "keep_every and at) or by others, and which would be removed. Nothing is removed without\n"
    "--yes. Those named latest and best stay, and so does what is damaged or was set aside. A\n"
    "run that is being trained is refused, but not at a URL, where checkpoint.remote.keep counts.\n"
    + RUN_OR_URL_HELP,
    [
        Option("--keep", "Number of newest checkpoints to keep, or all; default: checkpoint.keep.",
               "N", choices=("all",), type=int),
        Option("--keep-every", "Interval such as '1000 steps', or none; default: as recorded.",
               "PERIOD"),
        Option("--yes", "Remove the checkpoints."),
        JSON,
    ],
    [
        ("setpoint checkpoint prune runs/tiny-3fa94c21", "what would be removed"),
        ("setpoint checkpoint prune runs/tiny-3fa94c21 --keep 1 --yes",
         "keep the newest and the best"),
        ("setpoint checkpoint prune runs/a --keep 3 --keep-every '1000 steps'", "other rules"),
    ],
)  # fmt: skip
def checkpoint_prune(arguments: Arguments) -> int:
    """Print what stays, and remove the rest with --yes.

    Raises:
        RunError: if something cannot be removed.
    """
    place, removes = open_place(arguments.positional[0]), arguments.has("--yes")
    if place.only is not None:
        raise SetpointError(
            f"{arguments.positional[0]} is one checkpoint; give its run or {place.root}"
        )
    if isinstance(place, RemotePlace):
        decisions = _prune_remote(place, arguments, removes)
    else:
        decisions = _prune_local(place.place.root, arguments, removes)
    removed = [decision.entry for decision in decisions if not decision.reasons]
    action = "removed" if removes else "would be removed"
    rows = [
        [entry.path.name, in_units(entry.size),
         f"stays: {', '.join(reasons)}" if reasons else action]
        for entry, reasons in decisions
    ]  # fmt: skip
    size = in_units(sum(entry.size for entry in removed))
    hint = "; --yes removes them" if removed and not removes else ""
    total = f"{action}: {len(removed)} of {len(decisions)} checkpoints, {size}{hint}"
    facts = {
        "folder": place.root,
        "removed": removes,
        "checkpoints": [
            {
                "checkpoint": entry.path.name,
                "step": entry.step,
                "bytes": entry.size,
                "stays": bool(reasons),
                "reasons": reasons,
            }
            for entry, reasons in decisions
        ],
    }
    emit(arguments, facts, f"{table(rows)}\n{total}" if rows else f"no checkpoints in {place.root}")
    return 0


def _prune_local(root: Path, arguments: Arguments, removes: bool) -> list[Decision]:
    run = root.parent if root.name == CHECKPOINTS and is_record(str(root.parent)) else None
    section = None if run is None else resolve(read_record(Job, str(run))[0]).checkpoint
    rule = _rule(arguments, section, section and section.keep)
    with ExitStack() as stack:
        if removes and run is not None:
            refuse_linked_folders(run)
            stack.callback(RunLock(run / ".lock").release)
        protected = protected_by_pointers(root)
        if protected is None:
            raise RunError(f"latest or best in {root} cannot be read, so nothing may be removed")
        listed = (entry for entry in survey(CheckpointPlace(root)) if entry.kind == "checkpoint")
        entries = {entry.step: entry for entry in listed}
        # A damaged one may be all that is left of its step.
        protected |= {
            step: "cannot be read" if entry.manifest is None else "damaged"
            for step, entry in entries.items()
            if entry.damage
        }
        reasons = rule.reasons(entries, protected, Positions(root).distance)
        if removes:
            _remove([entries[step] for step, why in reasons.items() if not why], run)
    return [Decision(entries[step], why) for step, why in reasons.items()]


def _prune_remote(place: RemotePlace, arguments: Arguments, removes: bool) -> list[Decision]:
    """Likewise for uploaded checkpoints; unfinished ones are left alone."""
    section = None
    with TemporaryDirectory() as folder:
        for name in (ORIGINS, CONFIG):
            place.run.download_record(name, Path(folder) / name)
        if is_record(folder):
            section = resolve(read_record(Job, folder)[0]).checkpoint
    remote = None if section is None else section.remote
    rule = _rule(arguments, section, section and (section.keep if remote is None else remote.keep))
    reasons, unfinished = place.run.reasons(rule)
    decisions = [
        Decision(entry, reasons.get(entry.step, ["cannot be read"]))
        for entry in place.survey()
        if entry.kind == "checkpoint"
    ]
    if removes and not all(decision.reasons for decision in decisions):
        place.run.prune(rule, unfinished)
    return decisions


def _rule(arguments: Arguments, section: Checkpoint | None, keep: int | None) -> Retention:
    """The rules of the record, and those that are given instead."""
    number, interval = arguments.value("--keep"), arguments.value("--keep-every")
    if section is None and number is None:
        raise SetpointError(
            "there is no record of a run beside these checkpoints: give the number of newest "
            "checkpoints to keep, --keep N"
        )
    if number is not None:
        keep = None if number == "all" else int(number)
    every = section.keep_every if section is not None else None
    if interval is not None:
        every = None if interval == "none" else _period(interval)
    return Retention(keep, every, None if section is None else section.at)


def _period(text: str) -> Period:
    try:
        every = Period(text)
    except Invalid as error:
        valid = ", ".join(error.valid[:4])
        raise SetpointError(f"--keep-every {error.message}.\nValid: none, {valid}") from None
    if every.unit == "last_step":
        raise SetpointError(f"--keep-every {text} is no interval; none keeps none of them")
    return every


def _remove(entries: Sequence[CheckpointEntry], run: Path | None) -> None:
    if entries and run is not None:
        log = EventLog(run / "events.jsonl")
        log.write("prune", checkpoints=[entry.path.name for entry in entries])
        log.close()
    for entry in entries:
        try:
            remove(entry.path, directory_name(entry.step))
        except OSError as error:
            raise RunError(f"{entry.path} cannot be removed: {error.strerror}") from error
