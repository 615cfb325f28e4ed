"""`setpoint runs verify`: whether the records of runs are whole and fit together."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from setpoint.cli.options import JSON, Arguments, Command, Option, refuse_overrides
from setpoint.cli.runs import run_directories
from setpoint.config import SetpointError, printable, read_record, resolve
from setpoint.ops.proof import verify_chain
from setpoint.runs.labels import read_labels
from setpoint.track.jsonl import read_jsonl
from setpoint.train.config import Job

HEAD = Option("--head", "The chain of the run must have this head.", "HASH")
COMMAND = Command(
    "runs verify",
    "RUN...",
    "Read the records of runs: the configuration resolves to the fingerprint that it was\n"
    "recorded with, each row of metrics and each event is whole, steps of rows only grow, and\n"
    "rows, events and the manifests of checkpoints are those that the chain of hashes of the run\n"
    "has sealed (chain.jsonl): what was changed, removed, inserted or moved is named. The head\n"
    "of the chain, which the end of training prints, stands for all of it: --head compares it\n"
    "with one from elsewhere. Exit status 1 if something is not so. `setpoint checkpoint verify`\n"
    "compares the bytes of checkpoints.",
    [HEAD, JSON],
    [
        ("setpoint runs verify runs/*", "all runs"),
        ("setpoint runs verify runs/tiny-3fa94c21 --head 5d0c...", "the run whose head this is"),
    ],
    positional=(1, sys.maxsize),
)


@COMMAND
def run(arguments: Arguments) -> int:
    """Verify the runs."""
    refuse_overrides(arguments)
    paths, head = run_directories(arguments.positional), arguments.value(HEAD.name)
    if head is not None and len(paths) > 1:
        raise SetpointError(f"{HEAD.name} is of one run, and {len(paths)} are given")
    rows: list[dict[str, Any]] = []
    for path in paths:
        seal = verify_chain(path)
        problems = [*_problems(path), *seal.problems]
        if head is not None and seal.head != head:
            problems.append(f"the head of its chain is {seal.head or 'not there'}, not {head}")
        rows.append({"run": str(path), **asdict(seal), "problems": problems})
    if arguments.has(JSON.name):
        print(json.dumps({"runs": rows}, indent=2))
    else:
        for row in rows:
            print(f"{row['run']}: {'ok' if not row['problems'] else ''}".rstrip())
            for line in (*row["problems"], *_sealed(row)):
                print(f"  {printable(line)}")
    return 1 if any(row["problems"] for row in rows) else 0


def _sealed(row: dict[str, Any]) -> Iterator[str]:
    if row["head"] is not None:
        counts = ", ".join(f"{row[name]} {name}" for name in ("rows", "events", "checkpoints"))
        yield f"sealed: {counts}; head {row['head']}"
    yield from row["notes"]


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
