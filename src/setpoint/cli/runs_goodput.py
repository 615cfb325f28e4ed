"""`setpoint runs goodput`: where the time of runs went."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from setpoint.cli.options import JSON, Arguments, Command, refuse_overrides
from setpoint.cli.output import table
from setpoint.cli.runs import run_directories
from setpoint.track.console import short_time
from setpoint.train.run_status import goodput_of

COMMAND = Command(
    "runs goodput",
    "RUN...",
    "Print where the time of runs went, over all of their sessions, from events.jsonl and\n"
    "metrics.jsonl. Goodput is the share that went into steps which the run still has: trained.\n"
    "waiting is for data in these steps; lost are steps and evaluations that were trained again\n"
    "after a kill, a failure or a rollback; starting lasts from the start of the process until\n"
    "the model is where the run is; saving is how long checkpoints held up training; idle lies\n"
    "between sessions, with what a killed process did after its last row of metrics.",
    [JSON],
    [("setpoint runs goodput runs/tiny-3fa94c21", "what kills and saves have cost")],
    positional=(1, sys.maxsize),
)


@COMMAND
def run(arguments: Arguments) -> int:
    """Print a table for each run."""
    refuse_overrides(arguments)
    found = {path: goodput_of(path) for path in run_directories(arguments.positional)}
    if arguments.has(JSON.name):
        rows = [{"run": str(k), "goodput": v.share, **asdict(v)} for k, v in found.items()]
        print(json.dumps({"runs": rows}, indent=2))
        return 0
    for path, spent in found.items():
        if spent.share is None:
            print(f"{path}: no time is recorded")
            continue
        lost = f", {spent.lost_steps:,} steps lost" if spent.lost_steps else ""
        print(
            f"{path}: goodput {spent.share:.1%} of {short_time(spent.wall)}, "
            f"sessions: {spent.sessions}{lost}"
        )
        rows = [
            [f"  {name}", f"{seconds:,.1f} s", f"{seconds / spent.wall:.1%}"]
            for name, seconds in spent.parts.items()
        ]
        print(table(rows, ("  part", "time", "share")))
    return 0
