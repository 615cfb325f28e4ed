"""`setpoint checkpoint list`: what checkpoints there are."""

from __future__ import annotations

import time
from typing import Any

from setpoint.checkpoint.places import CheckpointEntry
from setpoint.cli.checkpoint import RUN_OR_URL_HELP, folder_of, state_of
from setpoint.cli.options import JSON, Arguments, Command, refuse_overrides
from setpoint.cli.output import print_notes, table
from setpoint.ops.remote_survey import RemotePlace
from setpoint.units.size import in_units

COMMAND = Command(
    "checkpoint list",
    "RUN",
    "Print a run's checkpoints: step, time and size, the ranks that wrote it, what it holds, the\n"
    "metric that selects the best (the lowest; negated where it is to rise), what latest and best\n"
    "name, and what is damaged, set aside or left by a process that died. Lengths of files are\n"
    "compared; `setpoint checkpoint verify` compares every byte. Of a URL that holds several runs\n"
    "it prints a line for each.\n" + RUN_OR_URL_HELP,
    [JSON],
    [
        ("setpoint checkpoint list runs/tiny-3fa94c21", "what there is"),
        ("setpoint checkpoint list runs/tiny-3fa94c21 --json", "for a program"),
    ],
)
HEADINGS = ("checkpoint", "written", "size", "ranks", "tensors", "metric", "")


@COMMAND
def run(arguments: Arguments) -> int:
    """Print the table."""
    refuse_overrides(arguments)
    folder = folder_of(arguments.positional[0])
    found, pointers = folder.survey(), folder.pointers()
    if not found and isinstance(folder, RemotePlace) and (runs := folder.run.runs()):
        return _list_runs(folder, runs, arguments.has(JSON.name))
    named = {
        each.path.name: [name for name, step in pointers.items() if step == each.step]
        for each in found
        if each.kind == "checkpoint"
    }
    broken = [text for text in pointers.values() if isinstance(text, str)]
    if arguments.has(JSON.name):
        import json

        rows = [_facts(each, named.get(each.path.name, [])) for each in found]
        print(json.dumps({"folder": folder.root, "checkpoints": rows, "problems": broken},
                         indent=2))  # fmt: skip
        return 0
    if found:
        print(table([_row(each, named.get(each.path.name, [])) for each in found], HEADINGS))
        print(f"{len(found)} in {folder.root}, {in_units(sum(each.size for each in found))}")
    else:
        print(f"no checkpoints in {folder.root}")
    print_notes(broken)
    return 0


def _list_runs(place: RemotePlace, names: list[str], for_programs: bool) -> int:
    """Print what there is of each run in a folder of runs."""
    rows: list[dict[str, Any]] = []
    for name in names:
        run = RemotePlace(f"{place.run.url}/{name}")
        found = [each for each in run.survey() if each.kind == "checkpoint"]
        size = sum(each.size for each in found)
        rows.append({"run": name, "checkpoints": len(found), "bytes": size, **run.pointers()})
    if for_programs:
        import json

        print(json.dumps({"folder": place.run.url, "runs": rows}, indent=2))
        return 0
    texts = [
        [row["run"], str(row["checkpoints"]), in_units(row["bytes"]),
         *("" if row[name] is None else str(row[name]) for name in ("latest", "best"))]
        for row in rows
    ]  # fmt: skip
    print(table(texts, ("run", "checkpoints", "size", "latest", "best")))
    print(f"{len(rows)} runs in {place.run.url}")
    return 0


def _row(found: CheckpointEntry, names: list[str]) -> list[str]:
    manifest = found.manifest
    metric = None if manifest is None else manifest.metric
    moment = found.written
    return [
        found.path.name,
        "" if moment is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment)),
        in_units(found.size),
        "" if found.ranks is None else str(found.ranks),
        ", ".join(found.stems),
        "" if metric is None else f"{metric:.6g}",
        state_of(found, names),
    ]


def _facts(found: CheckpointEntry, names: list[str]) -> dict[str, Any]:
    manifest = found.manifest
    metric = None if manifest is None else manifest.metric
    return {
        "checkpoint": found.path.name,
        "kind": found.kind,
        "step": found.step,
        "written": found.written,
        "bytes": found.size,
        "ranks": found.ranks,
        "tensors": found.stems,
        "leaves_out_frozen": found.leaves_out,
        # JSON has no NaN, which stands for a metric that never wins.
        "metric": metric if metric == metric else None,
        "named_by": names,
        "damage": found.damage or None,
    }
