"""One start of `train.startup` in a process of its own: `python -m train.startup_run BEGAN WORDS`.

Runs `setpoint train WORDS` until its first step is taken, and says what each part took.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any


class Marks:
    """When each part ended.

    Arguments:
        began: the clock (`time.monotonic`) when the process was started.
    """

    def __init__(self, began: float) -> None:
        self.wall, self.cpu = began, 0.0
        self.parts: dict[str, tuple[float, float]] = {}

    def end(self, part: str) -> None:
        """What has passed since the last mark was this part's; a part may have several."""
        wall, cpu = time.monotonic(), time.process_time()
        before = self.parts.get(part, (0.0, 0.0))
        self.parts[part] = (before[0] + wall - self.wall, before[1] + cpu - self.cpu)
        self.wall, self.cpu = wall, cpu


class Started(BaseException):
    """The first step is taken; nothing catches it but this program."""


def between(marks: Marks, function: Callable[..., Any], before: str, after: str) -> Any:
    """The function with a mark where it begins and where it ends."""

    def run(*given: Any, **named: Any) -> Any:
        marks.end(before)
        result = function(*given, **named)
        marks.end(after)
        return result

    return run


def main(began: str, *words: str) -> None:
    """Run the command, and print a line of JSON."""
    marks = Marks(float(began))
    from setpoint.cli import main as cli
    from setpoint.cli import train
    from setpoint.cli.main import Loading

    marks.end("python, command")
    check = train.preflight

    def check_and_import(job: Any) -> Any:
        report = check(job)
        marks.end("check")
        with Loading():
            importlib.import_module("torch")
            marks.end("torch")
            importlib.import_module("setpoint.train.run")
        marks.end("modules")
        instrument(marks)
        return report

    train.preflight = check_and_import
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        status = cli.main(["train", *words]) or 1
    except Started:
        status = 0
    print(json.dumps(marks.parts), file=answers, flush=True)
    os._exit(status)  # the folder of the run is not wanted in order


def instrument(marks: Marks) -> None:
    """Put marks around what a run does before its second step."""
    from setpoint.data.config import Data
    from setpoint.train import run
    from setpoint.train.loop import Loop

    run.build_components = between(marks, run.build_components, "open", "build")
    Data.build = between(marks, Data.build, "build", "data")
    step = Loop.take_step

    def first(loop: Loop) -> None:
        marks.end("open")
        step(loop)
        marks.end("first step")
        raise Started

    Loop.take_step = first  # type: ignore[method-assign]


if __name__ == "__main__":
    main(*sys.argv[1:])
