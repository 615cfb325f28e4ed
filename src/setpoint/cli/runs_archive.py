"""`setpoint runs archive`: hide runs from lists, with nothing of them removed."""

from __future__ import annotations

import sys
from dataclasses import replace

from setpoint.cli.options import Arguments, Command, Option, refuse_overrides
from setpoint.cli.runs import relabel, run_directories

COMMAND = Command(
    "runs archive",
    "RUN...",
    "Leave runs out of `setpoint runs list` unless --archived is given. Nothing is moved or\n"
    "removed: the mark is kept in labels.json in the run directory.",
    [Option("--restore", "List them again.")],
    [("setpoint runs archive runs/tiny-3fa94c21", "leave a run out of lists")],
    positional=(1, sys.maxsize),
)


@COMMAND
def run(arguments: Arguments) -> int:
    """Set the mark, or take it away."""
    refuse_overrides(arguments)
    archived = not arguments.has("--restore")
    paths = run_directories(arguments.positional)
    relabel(paths, lambda labels: replace(labels, archived=archived))
    return 0
