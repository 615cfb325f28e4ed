"""Inside one process: resolve, fork, diff, fingerprint and serialize, beside what peers offer.

Leaves with status 1 if Setpoint passes a bound: at most pydantic's time where the table says so,
and elsewhere at most the multiple of it that this file states, with the reason.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from setpoint.cli.output import table

from . import operations
from .programs import OURS, write_programs

SIZES = {1: 250, 4: 1000, 16: 4000}
PYDANTIC = "pydantic"
# Steps, and how many times pydantic's time Setpoint's may be at each size. Where that is more
# than 1, docs/benchmarks.md says why.
BOUNDS: dict[str, dict[int, float]] = {
    "layers": {1: 1, 4: 1, 16: 1},
    "validate": {1: 25, 4: 60, 16: 160},
    "fork": {1: 3, 4: 0.6, 16: 0.1},
    "fork + diff": {1: 2, 4: 0.6, 16: 0.1},
    "fingerprint": {1: 4, 4: 1.5, 16: 0.5},
    "serialize": {1: 30, 4: 25, 16: 15},
}
STEEPEST = 1.2
"""A step's time may grow with this power of the number of leaves."""


def main() -> int:
    """Run the benchmark.

    Returns:
        0 if Setpoint keeps its bounds, else 1.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25, help="interleaved measurements of each")
    rounds = parser.parse_args().rounds
    # Collections come at moments of their own, and cost by the size of the whole process.
    gc.disable()
    found: dict[int, dict[str, dict[str, float]]] = {}
    for groups in SIZES:
        with tempfile.TemporaryDirectory() as name:
            found[groups] = _measure(Path(name), groups, rounds)
    failed = False
    for groups, leaves in SIZES.items():
        print(f"\n{leaves} leaves: CPU us, median of {rounds} interleaved measurements\n")
        failed = _report(found[groups], groups) or failed
    return 1 if _growth(found) or failed else 0


def _measure(folder: Path, groups: int, rounds: int) -> dict[str, dict[str, float]]:
    write_programs(folder, groups)
    for module in [name for name in sys.modules if name.startswith(("tree_", "side_"))]:
        del sys.modules[module]
    sides: dict[str, dict[str, Callable[[], Any]]] = {}
    for name, make in operations.SIDES.items():
        sides[name] = make(importlib.import_module(f"tree_{name}"), folder, groups)
    sys.path.remove(str(folder))
    steps = [(n, step, run) for n, made in sides.items() for step, run in made.items()]
    counts: dict[tuple[str, str], int] = {}
    times: dict[tuple[str, str], list[float]] = {}
    for name, step, run in steps:
        run()
        counts[name, step] = max(1, round(0.004 / max(_seconds(run, 1), 1e-6)))
    for _ in range(rounds):
        for name, step, run in steps:
            seconds = _seconds(run, counts[name, step])
            times.setdefault((name, step), []).append(1e6 * seconds)
        gc.collect()
    found: dict[str, dict[str, float]] = {}
    for (name, step), values in times.items():
        found.setdefault(name, {})[step] = statistics.median(values)
    return found


def _seconds(run: Callable[[], Any], count: int) -> float:
    before = time.process_time()
    for _ in range(count):
        run()
    return (time.process_time() - before) / count


def _report(found: dict[str, dict[str, float]], groups: int) -> bool:
    rows: list[list[str]] = []
    for name, times in found.items():
        rows.append([name, *(f"{times[s]:.0f}" if s in times else "-" for s in BOUNDS)])
    print(table(rows, headings=["side", *BOUNDS]))
    print()
    failed = False
    for step, bounds in BOUNDS.items():
        ratio = found[OURS][step] / found[PYDANTIC][step]
        bound = bounds[groups]
        verdict = "TOO SLOW" if ratio > bound else "ok" if bound <= 1 else "held"
        failed = failed or ratio > bound
        print(f"{verdict}: {step}: setpoint / pydantic = {ratio:.2f}; at most {bound:g}")
    return failed


def _growth(found: dict[int, dict[str, dict[str, float]]]) -> bool:
    small, large = min(found), max(found)
    rows: list[list[str]] = []
    failed = False
    for step in BOUNDS:
        least, most = found[small][OURS][step], found[large][OURS][step]
        exponent = math.log(most / least) / math.log(SIZES[large] / SIZES[small])
        failed = failed or exponent > STEEPEST
        theirs = found[large][PYDANTIC][step] / found[small][PYDANTIC][step]
        pydantic = math.log(theirs) / math.log(SIZES[large] / SIZES[small])
        per_leaf = [f"{found[g][OURS][step] / SIZES[g]:.2f}" for g in SIZES]
        rows.append([step, *per_leaf, f"{exponent:.2f}", f"{pydantic:.2f}"])
    print(
        "\nsetpoint: us a leaf by the size of the tree; exponents of growth, ours and pydantic's\n"
    )
    headings = ["step", *(f"{count:,}" for count in SIZES.values()), "exponent", "pydantic"]
    print(table(rows, headings=headings))
    print(f"\n{'TOO STEEP' if failed else 'ok'}: no exponent of ours above {STEEPEST}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
