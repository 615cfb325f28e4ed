"""Whole processes: CPU time to load a file and ten flags, to print the manual, and to complete.

Leaves with status 1 if Setpoint is not the fastest of the systems with a command line that refuse
a misspelt key and a wrong type.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from setpoint.cli.output import table
from support.process import clean_environment, cpu_milliseconds

from . import tree
from .programs import OURS, Program, write_programs

LOAD, MANUAL, COMPLETE = "load", "--help", "completion"
SIZES = {1: 250, 4: 1000, 16: 4000}
SLOW = 2500
"""Milliseconds at one size, beyond which a side is left out at the next."""

NO_FLAGS = "msgspec"
"""The side whose flags this benchmark reads itself; it is shown, and bounds nothing."""


def main() -> int:
    """Run the benchmark.

    Returns:
        0 if Setpoint keeps its bounds, else 1.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="runs of each at 250 leaves")
    parser.add_argument(
        "--large-rounds", type=int, default=3, help="runs of each at 1,000 and 4,000"
    )
    parser.add_argument("--only", nargs="*", default=[], help="sides, by the names of the tables")
    options = parser.parse_args()
    failed = False
    slow: set[tuple[str, str]] = set()
    with tempfile.TemporaryDirectory() as name:
        refused: dict[str, dict[str, bool]] = {}
        loads: dict[int, dict[str, float]] = {}
        for groups, leaves in SIZES.items():
            folder = Path(name) / f"tree{groups}"
            programs = write_programs(folder, groups)
            programs = [p for p in programs if not options.only or p.side.name in options.only]
            environment = clean_environment(Path(name) / "bytecode")
            # What is slow already would take minutes at the next size.
            programs = [p for p in programs if (p.side.name, LOAD) not in slow]
            for program in programs:
                verify(program, environment, folder)
            if groups == 1:
                refused = {p.side.name: _refused(p, environment, folder) for p in programs}
            rounds = options.rounds if groups == 1 else options.large_rounds
            times = _measure(programs, environment, folder, rounds, slow)
            slow |= {(n, w) for n, f in times.items() for w, t in f.items() if t > SLOW}
            loads[groups] = {n: found[LOAD] for n, found in times.items() if LOAD in found}
            print(f"\n{leaves} leaves, 60 values in a file, 10 flags; ", end="")
            print(f"CPU ms of the whole process, median of {rounds} interleaved runs\n")
            failed = _report(times, refused) or failed
    _growth(loads)
    return 1 if failed else 0


def _run(
    command: list[str], environment: dict[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
    )


def verify(program: Program, environment: dict[str, str], folder: Path) -> None:
    """Make sure that a side reads all values as they were written.

    Arguments:
        program: of the side.
        environment: for the process.
        folder: where it starts.
    """
    done = _run([*program.verify, *program.flags], environment, folder)
    lines = [line for line in done.stdout.splitlines() if line.startswith("READ ")]
    if done.returncode != 0 or not lines:
        sys.exit(f"{program.side.name} failed:\n{done.stdout}{done.stderr}")
    wrong = differing(json.loads(lines[0].removeprefix("READ ")), tree.expected(program.groups))
    if wrong:
        sys.exit(f"{program.side.name} reads other values: {', '.join(wrong[:5])}")


def differing(read: object, wanted: object, path: str = "") -> list[str]:
    """Where two trees of plain data differ.

    Arguments:
        read, wanted: nested mappings.
        path: of both.

    Returns:
        dotted paths; True and 1, or 1 and 1.0, are different values.
    """
    if isinstance(read, dict) and isinstance(wanted, dict):
        found: list[str] = []
        for key in {**wanted, **read}:
            here = f"{path}.{key}" if path else str(key)
            if key not in read or key not in wanted:
                found.append(here)
            else:
                found += differing(read[key], wanted[key], here)
        return found
    if isinstance(read, list) and isinstance(wanted, list):
        same = len(read) == len(wanted) and not any(map(differing, read, wanted))
        return [] if same else [path or "."]
    return [] if type(read) is type(wanted) and read == wanted else [path or "."]


def _refused(program: Program, environment: dict[str, str], folder: Path) -> dict[str, bool]:
    """Which mistakes a side refuses."""
    found: dict[str, bool] = {}
    for name, (path, value) in tree.MISTAKES.items():
        command = [*program.command, *program.flags, *program.mistake(path, value)]
        found[name] = _run(command, environment, folder).returncode != 0
    return found


def _measure(
    programs: list[Program],
    environment: dict[str, str],
    folder: Path,
    rounds: int,
    slow: set[tuple[str, str]],
) -> dict[str, dict[str, float]]:
    commands: list[tuple[str, str, list[str]]] = []
    for program in programs:
        side = program.side
        commands.append((side.name, LOAD, [*program.command, *program.flags]))
        if side.manual:
            commands.append((side.name, MANUAL, [*program.command, "--help"]))
        if side.completion:
            word = side.flag(tree.prefixed("s0.w", program.groups), "").rstrip("=")
            commands.append((side.name, COMPLETE, [*program.command, "--complete", word]))
    commands.append(("python -c pass", LOAD, [sys.executable, "-c", "pass"]))
    commands = [command for command in commands if command[:2] not in slow]
    times: dict[tuple[str, str], list[float]] = {}
    for turn in range(rounds + 1):
        for name, what, command in commands:
            milliseconds = cpu_milliseconds(command, environment, folder)
            if turn:  # the first run compiles
                times.setdefault((name, what), []).append(milliseconds)
    found: dict[str, dict[str, float]] = {}
    for (name, what), values in times.items():
        found.setdefault(name, {})[what] = statistics.median(values)
    return found


def _report(times: dict[str, dict[str, float]], refused: dict[str, dict[str, bool]]) -> bool:
    ours = times[OURS]
    rows: list[list[str]] = []
    for name, found in sorted(times.items(), key=lambda item: item[1].get(LOAD, math.inf)):
        row = [name]
        for what in (LOAD, MANUAL, COMPLETE):
            value = found.get(what)
            row += ["-", "-"] if value is None else [f"{value:.0f}", f"{value / ours[what]:.1f}"]
        mistakes = refused.get(name, {})
        row += ["yes" if mistakes[one] else "no" for one in mistakes] or ["-"] * 3
        rows.append(row)
    headings = ["side", LOAD, "x", MANUAL, "x", COMPLETE, "x", "key", "type", "range"]
    print(table(rows, headings=headings))
    print("\nx: times Setpoint's; key, type, range: whether a misspelt key, a wrong type and a")
    print("value out of range are refused\n")
    failed = False
    careful = [n for n, m in refused.items() if m["a misspelt key"] and m["a wrong type"]]
    for what in (LOAD, MANUAL, COMPLETE):
        peers = {
            name: times[name][what]
            for name in careful
            if name not in (OURS, NO_FLAGS) and what in times.get(name, {})
        }
        if not peers:  # `--only` has left none
            continue
        best = min(peers, key=lambda n: peers[n])
        verdict = "ok" if ours[what] <= peers[best] else "TOO SLOW"
        failed = failed or ours[what] > peers[best]
        ratio = ours[what] / peers[best]
        print(f"{verdict}: {what}: setpoint / {best} = {ratio:.2f}; at most 1")
    return failed


def _growth(loads: dict[int, dict[str, float]]) -> None:
    small, large = min(loads), max(loads)
    rows: list[list[str]] = []
    floor = loads[small]["python -c pass"]
    for name, least in loads[small].items():
        if name not in loads[large] or name == "python -c pass":
            continue
        most = loads[large][name]
        per_leaf = 1000 * (most - least) / (SIZES[large] - SIZES[small])
        exponent = math.log(max(most - floor, 0.1) / max(least - floor, 0.1)) / math.log(
            SIZES[large] / SIZES[small]
        )
        figures = [f"{loads[groups][name]:.0f}" for groups in loads]
        rows.append([name, *figures, f"{per_leaf:.1f}", f"{exponent:.2f}"])
    print("\nload, by the size of the tree: CPU ms; us for each further leaf; exponent without the")
    print("time of an empty Python\n")
    headings = ["side", *(f"{count:,}" for count in SIZES.values()), "us a leaf", "exponent"]
    print(table(rows, headings=headings))


if __name__ == "__main__":
    sys.exit(main())
