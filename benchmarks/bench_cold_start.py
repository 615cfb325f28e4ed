"""The price of a command: CPU time of whole, cold processes that read ten overrides.

`setpoint check tiny` against tyro (dataclasses) and pydantic-settings on the same tree, and
against a Python that does nothing. Leaves with status 1 if Setpoint takes more than a fifth of
tyro's time, or more than pydantic-settings'.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import setpoint.presets  # noqa: F401 - registers the preset
from peers.tiny import write_programs
from setpoint.cli.output import table
from setpoint.config import Config
from setpoint.config.composition import compose
from setpoint.config.draft.walk import leaves
from setpoint.config.record.record import fingerprint
from setpoint.train.config import Job
from support.process import clean_environment, cpu_milliseconds

OURS, TYRO, PYDANTIC, PYTHON = "setpoint check", "tyro", "pydantic-settings", "python -c pass"
OVERRIDES = {
    "optimizer.lr": "2e-3",
    "optimizer.weight_decay": "0.05",
    "model.dim": "256",
    "model.layers": "6",
    "batch.global_size": "32",
    "duration": "500 steps",
    "schedule.floor": "0.05",
    "precision.compute": "fp32",
    "evaluation.every": "50 steps",
    "checkpoint.keep": "5",
}
HEAVY = ("torch", "numpy", "yaml", "ruamel", "rich")
WRONG = (("--optimizer.lrr", "1e-3"), ("--model.dim", "wide"), ("--model.dim", "0"))


def main() -> int:
    """Run the benchmark.

    Returns:
        0 if Setpoint keeps its bounds, else 1.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="runs of each, at least 9")
    rounds = max(9, parser.parse_args().rounds)
    flags = [word for path, text in OVERRIDES.items() for word in (f"--{path}", text)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = clean_environment(folder / "bytecode")
        programs = write_programs(folder, tuple(OVERRIDES))
        commands = {
            OURS: [str(_console_script()), "check", "tiny", *flags],
            TYRO: [sys.executable, str(programs[TYRO]), *flags],
            PYDANTIC: [sys.executable, str(programs[PYDANTIC]), *flags],
            PYTHON: [sys.executable, "-c", "pass"],
        }
        count = _verify(commands, environment, folder)
        modules = _imported(commands[OURS], environment, folder)
        times = _measure(commands, environment, folder, rounds)
    print(f"{count} leaves, {len(OVERRIDES)} overrides, {rounds} interleaved runs of each")
    print(f"CPU time of the whole process; setpoint imports {modules} modules, none of", end=" ")
    print(f"{', '.join(HEAVY)}\n")
    return _report(times)


def _console_script() -> Path:
    script = Path(sys.executable).parent / "setpoint"
    if not script.exists():
        sys.exit(f"{script} is missing: install Setpoint into this environment (make bench does)")
    return script


def _run(
    command: list[str], environment: dict[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)


def _verify(commands: dict[str, list[str]], environment: dict[str, str], folder: Path) -> int:
    """All have the same tree, read the same values and refuse the same mistakes; also warms up."""
    flags = [f"--{path}={text}" for path, text in OVERRIDES.items()]
    job = compose(Job, "tiny", flags=flags).resolve()
    expected = {path: _value(job, path) for path in OVERRIDES}
    for name, command in commands.items():
        if name == PYTHON:
            continue
        done = _run(command, environment, folder)
        if done.returncode != 0:
            sys.exit(f"{name} failed:\n{done.stdout}{done.stderr}")
        if name == OURS:
            assert fingerprint(job)[:8] in done.stdout, done.stdout
        else:
            assert json.loads(done.stdout) == expected, f"{name}: {done.stdout}"
        for wrong in WRONG:
            refused = _run([*command, *wrong], environment, folder)
            assert refused.returncode != 0, f"{name} takes {' '.join(wrong)}"
    return sum(1 for _ in leaves(job))


def _value(job: Config, path: str) -> Any:
    value: Any = job
    for part in path.split("."):
        value = getattr(value, part)
    return value if isinstance(value, int | float) else str(value)


def _imported(command: list[str], environment: dict[str, str], folder: Path) -> int:
    """How many modules our command imports; none of them may be heavy."""
    done = _run([sys.executable, "-X", "importtime", *command], environment, folder)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    names = [line.rpartition("|")[2].strip() for line in lines[1:]]
    heavy = sorted(name for name in names if name.partition(".")[0] in HEAVY)
    assert names, "Python has not said what it imports"
    assert not heavy, f"setpoint check imports {', '.join(heavy)}"
    return len(names)


def _measure(
    commands: dict[str, list[str]], environment: dict[str, str], folder: Path, rounds: int
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            times[name].append(cpu_milliseconds(command, environment, folder))
    return times


def _report(times: dict[str, list[float]]) -> int:
    medians = {name: statistics.median(values) for name, values in times.items()}
    ours = medians[OURS]
    rows = [
        (name, f"{medians[name]:.1f}", f"{min(values):.1f}", f"{medians[name] / ours:.2f}")
        for name, values in times.items()
    ]
    print(table(rows, headings=("command", "median ms", "least ms", "x setpoint")))
    print()
    bounds = ((TYRO, 0.2, "a fifth of tyro"), (PYDANTIC, 1.0, "pydantic-settings"))
    failed = False
    for peer, bound, words in bounds:
        ratio = ours / medians[peer]
        verdict = "ok" if ratio <= bound else "TOO SLOW"
        failed = failed or ratio > bound
        print(f"{verdict}: setpoint / {peer} = {ratio:.3f}; at most {bound} ({words})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
