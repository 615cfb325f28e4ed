"""CPU time of whole processes: load a file and ten flags, and print the manual.

    python -m config.cold [--rounds 15] [--only chz]

Each side reads the same tree of 250 values. `setpoint check tiny` and a Python that does nothing
stand beside them. Misses its bound if Setpoint is not the fastest of those that refuse a misspelt
key and a wrong type, or if `check` imports what is heavy.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import Report, clean_environment, spawn
from setpoint.config.files.write import write_toml, write_yaml

from . import tree
from .sides import SIDES

OURS, LOAD, MANUAL = "setpoint", "load", "--help"
CHECK, PASS = "setpoint check tiny", "python -c pass"
TREES = {"pydantic-settings": "pydantic", "tyro": "msgspec", "Hydra": "omegaconf"}
HEAVY = {"torch", "numpy", "yaml", "ruamel", "rich"}
CHECK_FLAGS = ("--optimizer.lr=2e-3", "--model.dim=256", "--model.layers=6", "--duration=500 steps",
               "--batch.global_size=32", "--evaluation.every=50 steps")  # fmt: skip


def main(words: list[str] | None = None) -> int:
    report = Report("config.cold", __doc__, words, rounds=15, only=[""])
    chosen = report.options
    sides = [side for side in SIDES if not chosen.only or side in chosen.only]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = clean_environment(folder / "bytecode")
        commands = {side: write_program(folder, side) for side in sides}
        for side, (command, flags) in commands.items():
            verify(side, [*command, *flags], environment, folder)
        refused = {
            side: [kind for kind in tree.MISTAKES if _refuses(side, command, kind, environment)]
            for side, (command, _) in commands.items()
        }
        script = [str(Path(sys.executable).parent / "setpoint"), "check", "tiny", *CHECK_FLAGS]
        runs = {
            **{(side, LOAD): [*command, *flags] for side, (command, flags) in commands.items()},
            **{(side, MANUAL): [*command, "--help"] for side, (command, _) in commands.items()},
            (CHECK, LOAD): script,
            (PASS, LOAD): [sys.executable, "-c", "pass"],
        }
        times: dict[tuple[str, str], list[float]] = {run: [] for run in runs}
        for _ in range(chosen.rounds):
            for run, command in runs.items():
                times[run].append(1e3 * spawn(command, environment, folder).cpu)
        heavy = _heavy_imports(script, environment)
    medians = {run: statistics.median(values) for run, values in times.items()}
    for side in (*sides, CHECK, PASS):
        cells = (f"{medians[side, what]:.0f}" if (side, what) in medians else "-"
                 for what in (LOAD, MANUAL))  # fmt: skip
        report.rows.append((side, *cells, ", ".join(refused.get(side, []))))

    def against(what: str) -> str:
        ours, *others = (f"{side} {medians[side, what]:.0f}" for side in sides)
        return f"{ours} ms; {', '.join(others)}"

    report.results = {
        "CPU time of processes that load 250 values with a file and ten flags": against(LOAD),
        "`--help` of the same": against(MANUAL),
        "`setpoint check tiny` with overrides, next to a Python that does nothing":
            f"{medians[CHECK, LOAD]:.0f} ms; {medians[PASS, LOAD]:.1f}",
    }  # fmt: skip
    for side in sides:
        if OURS in sides and {"key", "type"} <= {*refused[side]}:
            for what in (LOAD, MANUAL):
                ratio = medians[OURS, what] / medians[side, what]
                report.bound(ratio <= 1, f"{what}: Setpoint takes {ratio:.2f} of {side}")
    for module in heavy:
        report.bound(False, f"check imports {module}")
    note = f"CPU ms, medians of {chosen.rounds} interleaved runs"
    return report.finish(("side", LOAD, MANUAL, "refuses a wrong"), note)


def write_program(folder: Path, side: str) -> tuple[list[str], list[str]]:
    """Write the tree, the file and the program of a side: what starts it, and its ten flags."""
    name = TREES.get(side, side)
    (folder / f"tree_{name}.py").write_text(tree.module(name), encoding="utf-8")
    shutil.copy(Path(__file__).with_name("sides.py"), folder / "sides.py")
    # A file of two lines is compiled at each start; the module that it imports is not.
    (folder / "start.py").write_text(
        "import sys\nfrom sides import SIDES\nSIDES[sys.argv[1]](sys.argv[2], sys.argv[3:])\n"
    )
    # Hydra looks through the whole folder of its file for config groups.
    (folder / "values").mkdir(exist_ok=True)
    file = folder / "values" / ("values.yaml" if side == "Hydra" else "values.toml")
    file.write_text(_hydra_file() if side == "Hydra" else write_toml(tree.file_values()))
    command = [sys.executable, str(folder / "start.py"), side, str(file)]
    return command, [_flag(side, path, value) for path, value in tree.FLAGS.items()]


def _flag(side: str, path: str, value: Any) -> str:
    return f"{'' if side in ('Hydra', 'chz') else '--'}{path}={value}"


def _hydra_file() -> str:
    """A primary config, whose list of defaults chooses the variants."""
    chosen = [f"s{n}/item: {'scaled' if n == 1 else 'plain'}" for n in tree.WITH_UNION]
    lines = "".join(f"  - {line}\n" for line in ("base", *chosen, "_self_"))
    return f"defaults:\n{lines}{write_yaml(tree.file_values())}"


def verify(side: str, command: list[str], environment: dict[str, str], folder: Path) -> None:
    """See that a side reads all values as they were written."""
    done = subprocess.run(
        command, capture_output=True, text=True, env={**environment, "READ": "1"}, cwd=folder
    )
    if done.returncode:
        sys.exit(f"{side} failed:\n{done.stdout}{done.stderr}")
    if wrong := differing(json.loads(done.stdout.splitlines()[-1]), tree.expected()):
        sys.exit(f"{side} reads other values: {', '.join(wrong[:5])}")


def differing(read: object, wanted: object, path: str = "") -> list[str]:
    """Paths at which plain data differ; True, 1 and 1.0 are different values."""
    if isinstance(read, dict) and isinstance(wanted, dict):
        missing = object()
        return [
            inner
            for key in {**wanted, **read}
            for inner in differing(
                read.get(key, missing), wanted.get(key, missing), f"{path}.{key}".lstrip(".")
            )
        ]
    return [] if repr(read) == repr(wanted) else [path or "."]


def _refuses(side: str, command: list[str], kind: str, environment: dict[str, str]) -> bool:
    flag = _flag(side, *tree.MISTAKES[kind])
    done = subprocess.run([*command, flag], capture_output=True, env=environment, cwd=os.sep)
    return done.returncode != 0


def _heavy_imports(command: list[str], environment: dict[str, str]) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *command], capture_output=True, text=True,
        env=environment,
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return HEAVY & {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


if __name__ == "__main__":
    sys.exit(main())
