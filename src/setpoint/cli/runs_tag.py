"""`setpoint runs tag`: give runs tags, or take them away."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

from setpoint.cli.options import Arguments, Command, Option, refuse_overrides
from setpoint.cli.output import print_notes
from setpoint.cli.runs import relabel, run_directories
from setpoint.config import SetpointError
from setpoint.runs.labels import Labels, read_labels

COMMAND = Command(
    "runs tag",
    "TAG RUN...",
    "Give runs a tag, by which `setpoint runs list --where 'tags ~ TAG'` finds them. Tags are\n"
    "kept in labels.json in the run directory and are no part of its configuration.",
    [Option("--remove", "Take the tag away.")],
    [("setpoint runs tag baseline runs/tiny-3fa94c21", "tag a run")],
    positional=(2, sys.maxsize),
)


@COMMAND
def run(arguments: Arguments) -> int:
    """Tag the runs."""
    refuse_overrides(arguments)
    tag, *words = arguments.positional
    if not re.fullmatch(r"[\w.:/+@-]+", tag):
        raise SetpointError(f"{tag!r} is no tag\nValid: letters, digits and _ . : / + @ -")
    removes = arguments.has("--remove")

    paths = run_directories(words)
    if removes:
        print_notes([f"{p} has no tag {tag}" for p in paths if tag not in read_labels(p).tags])

    def change(labels: Labels) -> Labels:
        rest = tuple(each for each in labels.tags if each != tag)
        return replace(labels, tags=rest if removes else (*rest, tag))

    relabel(paths, change)
    return 0
