"""`setpoint runs verify`: whether the records of runs are whole and fit together."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from setpoint.cli.command import JSON, Arguments, Command, refuse_overrides
from setpoint.cli.runs import run_directories
from setpoint.config import SetpointError, read_record, resolve
from setpoint.runs.labels import read_labels
from setpoint.track.jsonl import read_jsonl
from setpoint.train.config import Job

COMMAND = Command(
    "runs verify",
    "RUN...",
    "Read the records of runs: the configuration resolves to the fingerprint that it was\n"
    "recorded with, each row of metrics and each event is whole, and steps of rows only grow.\n"
    "Exit status 1 if one is not so. `setpoint checkpoint verify` compares the bytes of\n"
    "checkpoints.",
    [JSON],
    [("setpoint runs verify runs/*", "all runs")],
    positional=(1, sys.maxsize),
)


def run(arguments: Arguments) -> int:
    """Verify the runs."""
    refuse_overrides(arguments)
    found = {str(path): list(_problems(path)) for path in run_directories(arguments.positional)}
    if arguments.has(JSON.name):
        print(json.dumps({"runs": [{"run": k, "problems": v} for k, v in found.items()]}, indent=2))
    else:
        for path, problems in found.items():
            print(f"{path}: {'ok' if not problems else ''}".rstrip())
            for problem in problems:
                print(f"  {problem}")
    return 1 if any(found.values()) else 0


def _problems(path: Path) -> Iterator[str]:
    yield from _of_record(path)
    for name in ("events.jsonl", "metrics.jsonl"):
        if not (path / name).exists():
            continue
        damaged: list[str] = []
        try:
            rows = read_jsonl(path / name, damaged)
        except SetpointError as error:
            yield str(error)
            continue
        yield from damaged
        if name == "metrics.jsonl":
            yield from _out_of_order(rows)
    try:
        read_labels(path)
    except SetpointError as error:
        yield str(error)


def _of_record(path: Path) -> Iterator[str]:
    try:
        # Refuses a record that does not give the fingerprint which it states.
        resolve(read_record(Job, str(path))[0])
    except SetpointError as error:
        yield str(error)


def _out_of_order(rows: list[dict[str, Any]]) -> Iterator[str]:
    last: dict[str, int] = {}
    for row in rows:
        kind, step = str(row.get("kind")), row.get("step")
        if not isinstance(step, int):
            yield f"metrics.jsonl: a row of {kind} has no step"
            return
        if step < last.get(kind, 0):
            yield f"metrics.jsonl: a row of {kind} at step {step} comes after step {last[kind]}"
            return
        last[kind] = step
