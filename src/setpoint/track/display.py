"""Which way a run is shown."""

from __future__ import annotations

import sys
from typing import Literal, TextIO

from .console import is_terminal
from .progress import LineProgress, Progress


def make_progress(
    mode: Literal["auto", "bar", "lines", "none"],
    *,
    total_steps: int | None,
    stream: TextIO | None = None,
) -> Progress:
    """Choose how a run is shown. rich is imported only for the bar.

    Arguments:
        mode: `tracking.progress`; `auto` is a bar on a terminal and lines elsewhere.
        total_steps: after which the run ends, or None if something else ends it.
        stream: where it is shown; standard output if not given.
    """
    output: TextIO = sys.stdout if stream is None else stream
    if mode == "none":
        return Progress()
    if mode == "bar" or (mode == "auto" and is_terminal(output)):
        from .progress_bar import BarProgress  # rich takes a while to import

        return BarProgress(total_steps, output)
    return LineProgress(total_steps, output)
