"""Tokens per second and peak memory of one training job, against PyTorch and two frameworks.

    cd benchmarks && python -m train.loops [--models tiny 18M] [--precisions fp32 bf16]

Every side trains the same model, of the same weights, on the same batches, with the same AdamW,
schedule and clipping. Each is a process of its own, as frameworks own their loops; they take turns,
a block of updates each. The losses of all updates must agree. Leaves with status 1 if they do not,
or if Setpoint is slower than a side. `OMP_NUM_THREADS=1` gives steadier CPU times where others use
the machine. Sides that are not installed are left out; `make bench-train` installs all.
"""

from __future__ import annotations

import importlib.util
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from harness import Clocks, Report, misses, ratio
from setpoint.config.composition import compose
from setpoint.train.config import Job
from train.sides import MODELS, SIDES

OURS = "setpoint"
# Updates in a block of each model; a block should take long beside a line through a pipe.
STEPS = {"tiny": 10, "18M": 2, "dust": 20}
# How far losses may lie apart: rounding, which grows with the updates in bf16.
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}
SHOWN = {
    "tiny": "the same job by other trainers, `tiny` in fp32, one thread",
    "18M": "18 M parameters in fp32: level, since matrix products dominate",
}
MEMORY = "peak memory above model and data, `tiny` in fp32"


@dataclass
class Worker:
    """A side's process, seconds of each block, losses of all updates, and peak of memory.

    Arguments:
        process: answers each line with a line.
    """

    process: subprocess.Popen[str]
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    peak: int = 0

    def answer(self) -> dict[str, Any]:
        """Wait for a line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} ended with {self.process.wait()}")
        return json.loads(line)

    def turn(self) -> None:
        """Let a block run."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        seconds = self.answer()
        self.wall.append(seconds["wall"])
        self.cpu.append(seconds["cpu"])


def main(words: Sequence[str] | None = None) -> int:
    report = Report(
        "train.loops", __doc__, words, models=["tiny", "18M"], precisions=[*TOLERANCE], blocks=12,
        sides=[*SIDES], device=("auto", "cpu", "cuda"),
    )  # fmt: skip
    chosen = report.options
    sides = [OURS]
    for name in chosen.sides:
        if importlib.util.find_spec(SIDES[name].package) is None:
            report.leave_out(name, SIDES[name].package)
        elif name != OURS:
            sides.append(name)
    for model in chosen.models:
        for precision in chosen.precisions:
            workers = measure(model, precision, sides, max(2, chosen.blocks), chosen.device)
            compare(report, model, precision, workers, chosen.device)
    return report.finish(
        ("job", "side", "tokens/s", "setpoint / side", "by CPU time", "peak MiB", "losses apart"),
        f"{torch.get_num_threads()} threads; ratios of speeds: median (10 %-90 %)",
    )


def measure(
    model: str, precision: str, sides: Sequence[str], blocks: int, device: str
) -> dict[str, Worker]:
    """Start all sides, and let them train in turns."""
    steps = STEPS[model]
    workers: dict[str, Worker] = {}
    try:
        for name in sides:
            words = (name, model, precision, str(steps), str((blocks + 1) * steps), device)
            command = [sys.executable, "-m", "train.sides", *words]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            workers[name] = Worker(subprocess.Popen(command, **pipes))
            # One after the other, so that no two build at once.
            assert workers[name].answer()["ready"]
        for block in range(blocks + 1):
            for name in sides if block % 2 == 0 else reversed(sides):
                workers[name].turn()
        for worker in workers.values():
            last = worker.answer()
            worker.losses, worker.peak = last["losses"], last["peak"]
    finally:
        for worker in workers.values():
            with worker.process:
                worker.process.kill()
    return workers


def compare(
    report: Report, model: str, precision: str, workers: dict[str, Worker], device: str
) -> None:
    """Compare what was measured with Setpoint's."""
    title, ours = f"{model} {precision}", workers[OURS]
    # The first block of each side warms up.
    clocks = Clocks(*(
        {name: getattr(worker, clock)[1:] for name, worker in workers.items()}
        for clock in ("wall", "cpu")
    ))  # fmt: skip
    on = torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")
    job = compose(Job, "tiny", flags=[f"--{flag}" for flag in MODELS[model]]).resolve()
    tokens = STEPS[model] * job.batch.global_size * job.batch.sequence_length
    speeds: list[str] = []
    for name, worker in workers.items():
        gap, cells = apart(ours.losses, worker.losses), ["", ""]
        report.bound(
            gap <= TOLERANCE[precision],
            f"{title}: the losses of {name} are {gap:.1e} apart from Setpoint's; its speed is void",
        )
        if name != OURS:
            wall, cpu = (ratio(times, OURS, name) for times in clocks)
            cells = [str(wall), f"{cpu.median:.3f}"]
            missed = misses(clocks, OURS, name, 1.0, on)
            report.bound(not missed, f"{title}: {wall.median:.3f} of {name}, below 1.0")
            speeds.append(f"{name} {cpu.median:.3f}")
        speed = f"{tokens / statistics.median(clocks.wall[name]):,.0f}"
        memory = f"{worker.peak / 2**20:,.0f}"
        report.rows.append((title, name, speed, *cells, memory, f"{gap:.1e}"))
    if precision == "fp32" and model in SHOWN:
        report.results[SHOWN[model]] = f"{', '.join(speeds)} by CPU time"
    if (model, precision) == ("tiny", "fp32"):
        peaks = (f"{name} {worker.peak / 2**20:,.0f} MiB" for name, worker in workers.items())
        report.results[MEMORY] = ", ".join(peaks)


def apart(one: Sequence[float], other: Sequence[float]) -> float:
    """How far the losses of two sides lie apart."""
    if len(one) != len(other) or not all(map(math.isfinite, (*one, *other))):
        return math.inf
    return max((abs(a - b) for a, b in zip(one, other, strict=True)), default=math.inf)


if __name__ == "__main__":
    sys.exit(main())
