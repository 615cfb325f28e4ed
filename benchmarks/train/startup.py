"""From the command to the first step, part by part, beside `import torch` alone.

    cd benchmarks && python -m train.startup [--runs 9] [-- tiny --precision.compute fp32]

Each start is a process of its own with its bytecode on disk; the two sides take turns. Leaves with
status 1 if all but reading the data takes more than 1.3 times `import torch`, by the clock and by
CPU time.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from harness import Report

BOUND = 1.3
MEANINGS = {
    "python, command": "the interpreter, and the modules of the command",
    "check": "the configuration: composed, resolved, checked",
    "torch": "import torch",
    "modules": "Setpoint's modules that need torch",
    "data": "documents read, tokenized, split",
    "build": "tokenizer, model, optimizer",
    "open": "the run directory, its record, trackers",
    "first step": "forward, backward, update",
}
Seconds = tuple[float, float]  # by the clock, of the CPU


def main(words: Sequence[str] | None = None) -> int:
    report = Report("train.startup", __doc__, words, runs=9)
    starts: list[dict[str, Seconds]] = []
    imports: list[Seconds] = []
    for run in range(-1, max(1, report.options.runs)):  # the first one warms up
        found, alone = start(report.options.rest or ["tiny"]), import_torch()
        if run >= 0:
            starts.append(found)
            imports.append(alone)
    report.rows = [
        (part, *figures([parts[part] for parts in starts]), meaning)
        for part, meaning in MEANINGS.items()
    ]
    rest = [
        tuple(sum(seconds[clock] for part, seconds in parts.items() if part != "data")
              for clock in (0, 1))
        for parts in starts
    ]  # fmt: skip
    report.rows += [
        ("all but data", *figures(rest), "the command to its first step"),
        ("torch alone", *figures(imports), 'python -c "import torch"'),
    ]
    wall, cpu = (
        statistics.median(a[clock] / b[clock] for a, b in zip(rest, imports, strict=True))
        for clock in (0, 1)
    )
    report.bound(min(wall, cpu) <= BOUND, f"{wall:.2f} of torch alone, {cpu:.2f} by CPU time")
    report.results[
        "time from the command to the first step, without the data, over that of `import torch`"
    ] = f"{cpu:.2f} by CPU time (bound {BOUND})"
    return report.finish(("part", "wall ms", "CPU ms", ""))


def start(words: Sequence[str]) -> dict[str, Seconds]:
    """One start of a run in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, "-m", "train.startup_run", str(time.monotonic())]
        command = [*program, *words, "--workspace", folder]
        here = Path(__file__).parents[1]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=here, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with status {done.returncode}")
    return {part: tuple(seconds) for part, seconds in json.loads(done.stdout).items()}


def import_torch() -> Seconds:
    """What a process takes that only imports torch."""
    # Ending the interpreter in order takes as long again as half the import.
    program = "import os, torch; os._exit(0)"
    before, began = os.times(), time.monotonic()
    subprocess.run([sys.executable, "-c", program], check=True)
    wall, after = time.monotonic() - began, os.times()
    before_cpu, after_cpu = (t.children_user + t.children_system for t in (before, after))
    return wall, after_cpu - before_cpu


def figures(seconds: Sequence[tuple[float, ...]]) -> list[str]:
    """The medians of both clocks, in milliseconds."""
    return [f"{statistics.median(clock) * 1000:,.0f}" for clock in zip(*seconds, strict=True)]


if __name__ == "__main__":
    sys.exit(main())
