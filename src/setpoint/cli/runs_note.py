"""`setpoint runs note`: write a note to a run."""

from __future__ import annotations

from dataclasses import replace

from setpoint.cli.options import Arguments, Command, refuse_overrides
from setpoint.cli.runs import relabel, run_directories

COMMAND = Command(
    "runs note",
    "RUN TEXT",
    "Write a note to a run in place of the one before; an empty text removes it. It is kept in\n"
    "labels.json in the run directory.",
    [],
    [("setpoint runs note runs/tiny-3fa94c21 'diverges after 2,000 steps'", "write a note")],
    positional=(2, 2),
)


@COMMAND
def run(arguments: Arguments) -> int:
    """Write the note."""
    refuse_overrides(arguments)
    path, text = arguments.positional
    relabel(run_directories([path]), lambda labels: replace(labels, note=text.strip()))
    return 0
