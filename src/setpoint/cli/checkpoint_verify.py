"""`setpoint checkpoint verify`: whether every byte of checkpoints is as it was written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from setpoint.checkpoint.places import CheckpointEntry, reason_of
from setpoint.cli.checkpoint import RUN_OR_URL_HELP, Folder, folder_of
from setpoint.cli.main import FAILED, Loading
from setpoint.cli.options import JSON, Arguments, Command, refuse_overrides
from setpoint.config import SetpointError
from setpoint.hub.urls import is_url
from setpoint.units.size import in_units

COMMAND = Command(
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


@COMMAND
def run(arguments: Arguments) -> int:
    """Print a line for each checkpoint, and one for each file that is not as it was written.

    Returns:
        the exit status: 1 where something is not.
    """
    refuse_overrides(arguments)
    folder = folder_of(arguments.positional[0])
    found = [each for each in folder.survey() if each.kind == "checkpoint"]
    if not found:
        raise SetpointError(f"there are no checkpoints in {folder.root}")
    for_people = not arguments.has(JSON.name)
    pointers = folder.pointers() if folder.only is None else {}
    broken = [text for text in pointers.values() if isinstance(text, str)]
    rows: list[dict[str, Any]] = []
    for each in found:
        facts = _verify(folder, each)
        if facts is None:
            continue
        rows.append(facts)
        if for_people:
            print("\n".join(_lines(facts)), flush=True)
    ok = all(facts["ok"] for facts in rows) and not broken
    if for_people:
        for text in broken:
            print(text)
    else:
        import json

        answer = {"ok": ok, "folder": folder.root, "checkpoints": rows, "problems": broken}
        print(json.dumps(answer, indent=2))
    return 0 if ok else FAILED


def _verify(folder: Folder, found: CheckpointEntry) -> dict[str, Any] | None:
    """What became of one checkpoint; None where the run has removed it meanwhile."""
    problem, files, incomplete = None, [], False
    try:
        files = [each._asdict() for each in folder.compare(found)]
    except SetpointError as error:
        problem = reason_of(error)
    ok = problem is None and not any(each["problem"] for each in files)
    if ok and found.leaves_out and not is_url(folder.root):
        with Loading():
            from setpoint.model.pretrained.base import verify_base
        try:
            verify_base(found.path)
        except SetpointError as error:
            ok, incomplete, problem = False, True, str(error)
    if not ok and folder.is_gone(found):
        return None
    return {
        "checkpoint": found.path.name,
        "step": found.step,
        "ok": ok,
        "incomplete": incomplete,
        "problem": problem,
        "files": [
            {"name": each["name"], "bytes": each["size"], "problem": each["problem"] or None}
            for each in files
        ],
    }


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    name, files = facts["checkpoint"], facts["files"]
    if facts["ok"]:
        size = in_units(sum(each["bytes"] for each in files))
        yield f"{name}: ok, {len(files)} files, {size}"
        return
    problems = [facts["problem"], *(each["problem"] for each in files)]
    yield f"{name}: {'incomplete' if facts['incomplete'] else 'damaged'}"
    yield from (f"  {problem}" for problem in problems if problem)
