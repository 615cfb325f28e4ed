"""Seconds that `setpoint runs list` takes for many runs: the first time, and again.

    cd benchmarks && python -m runs.listing [--runs 10000]

Each run has the record of `tiny` with another learning rate and 100 rows of metrics. The commands
are processes of their own, beside `find` over the same files, which reads none of them. Leaves with
status 1 where the second list takes more than 3 seconds for 10,000 runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from harness import options, record, verdict
from setpoint.cli.output import table
from setpoint.config import record_files
from setpoint.config.composition import compose
from setpoint.train.config import Job

BOUND = 3.0 / 10_000
WHERE = "optimizer.lr > 0.5 and train.loss < 9"


def main(given: Sequence[str] | None = None) -> int:
    arguments = options(__doc__, given, runs=10000)
    count = arguments.runs
    with tempfile.TemporaryDirectory() as folder:
        _make(Path(folder), count)
        setpoint = [sys.executable, "-m", "setpoint", "runs", "list", folder]
        rows = [
            ["find", _seconds(["find", folder, "-name", "metrics.jsonl", "-size", "+1k"])],
            ["runs list, first", _seconds(setpoint)],
            ["runs list, again", again := _seconds(setpoint)],
            [f"runs list --where '{WHERE}'", filtered := _seconds([*setpoint, "--where", WHERE])],
        ]
    print(f"{count:,} runs\n")
    print(table([[name, f"{seconds:.2f} s"] for name, seconds in rows], ["", "wall"]))
    record(arguments, "runs.listing", {
        "time of `setpoint runs list`, the first and the second time; bound 3 s for 10,000 runs":
            f"{count:,} runs: {rows[1][1]:.2f} s and {again:.2f} s",
    })  # fmt: skip
    bound = max(1.0, BOUND * count)
    slow = [f"a list again takes {max(again, filtered):.1f} s, above {bound:.1f} s"]
    return verdict(slow * (max(again, filtered) > bound), f"a list again, at most {bound:.1f} s")


def _make(folder: Path, count: int) -> None:
    job = compose(Job, "tiny").resolve()
    record = json.loads(record_files(job)["config.json"])
    row = {"kind": "train", "time": "2026-01-01T00:00:00Z", "loss": 3.0, "lr": 0.1, "seconds": 1.0}
    lines = "".join(json.dumps({**row, "step": step}) + "\n" for step in range(100))
    start = {"time": "2026-01-01T00:00:00Z", "event": "start", "step": 0}
    end = {"time": "2026-01-01T00:00:01Z", "event": "end", "step": 99, "status": 0}
    for number in range(count):
        run = folder / f"experiment-{number % 10}" / f"tiny-{number:08x}"
        run.mkdir(parents=True)
        record["optimizer"]["lr"] = number / count
        (run / "config.json").write_text(json.dumps(record))
        (run / "events.jsonl").write_text(f"{json.dumps(start)}\n{json.dumps(end)}\n")
        (run / "metrics.jsonl").write_text(lines)


def _seconds(command: Sequence[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
