"""Time from the command to the first step, without reading the data, against `import torch` alone.

    cd benchmarks && python -m train.startup [--rounds 9] [-- tiny --precision.compute fp32]

Each start is a process of its own with its bytecode on disk; the two sides take turns. Leaves with
status 1 if the start takes more than 1.3 times `import torch`, by wall and by CPU time.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness import Report, spawn

BOUND = 1.3
# Ending the interpreter in order takes as long again as half the import.
TORCH = "import os, torch; os._exit(0)"
# Ends after the first step, and writes the seconds in which the data was read.
START = """\
import os, sys, time
from setpoint.cli import main, train
answer = sys.argv.pop(1)
preflight = train.preflight
def check(job):
    report = preflight(job)
    from setpoint.data.config import Data
    from setpoint.train.loop import Loop
    build, step, data = Data.build, Loop.take_step, []
    def timed(*given, **named):
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            return build(*given, **named)
        finally:
            data.append((time.perf_counter() - wall, time.process_time() - cpu))
    def first(loop):
        step(loop)
        with open(answer, "w") as file:
            print(*map(sum, zip(*data)), file=file)
        os._exit(0)
    Data.build, Loop.take_step = timed, first
    return report
train.preflight = check
sys.exit(main.main(["train", *sys.argv[1:]]) or 1)
"""


def main(words: Sequence[str] | None = None) -> int:
    report = Report("train.startup", __doc__, words, rounds=9)
    starts: list[tuple[float, float]] = []
    imports: list[tuple[float, float]] = []
    for number in range(-1, max(1, report.options.rounds)):  # the first one warms up
        found = start(report.options.rest or ["tiny"])
        alone = spawn([sys.executable, "-c", TORCH])
        if number >= 0:
            starts.append(found)
            imports.append((alone.wall, alone.cpu))
    for name, seconds in (("setpoint train", starts), ("import torch", imports)):
        medians = (
            f"{statistics.median(clock) * 1000:,.0f}" for clock in zip(*seconds, strict=True)
        )
        report.rows.append((name, *medians))
    wall, cpu = (
        statistics.median(a[clock] / b[clock] for a, b in zip(starts, imports, strict=True))
        for clock in (0, 1)
    )
    report.bound(min(wall, cpu) <= BOUND, f"{wall:.2f} of torch alone, {cpu:.2f} by CPU time")
    report.results[
        "time from the command to the first step, without the data, over that of `import torch`"
    ] = f"{cpu:.2f} by CPU time (bound {BOUND})"
    return report.finish(("", "wall ms", "CPU ms"))


def start(words: Sequence[str]) -> tuple[float, float]:
    """Seconds from the command to the first step, wall and CPU time, without the data."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "data")
        command = [sys.executable, "-c", START, str(answer), *words, "--workspace", folder]
        used = spawn(command)
        wall, cpu = map(float, answer.read_text().split())
    return used.wall - wall, used.cpu - cpu


if __name__ == "__main__":
    sys.exit(main())
