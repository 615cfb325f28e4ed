"""Tokens per second and peak memory of one training job, beside PyTorch and two frameworks.

    cd benchmarks && python -m train.loops [--models tiny 18M] [--precisions fp32 bf16] [--starts 3]

Every side trains the same model, of the same weights, on the same batches, with the same AdamW,
schedule and clipping at 1.0. Each lives in a process of its own, as frameworks own their loops and
set what is global; they take turns, a block of updates each, in an order that turns round (A B C, C
B A), so that whatever else the machine does hits all. Starts of equal processes differ by some
percent, by where their memory lies; `--starts N` divides the blocks among N starts of all sides.
The losses of all updates must agree: a speed without equal loss is void. Leaves with status 1 if
they do not, or if Setpoint is behind a side. `OMP_NUM_THREADS=1` gives steadier CPU times where
others use the machine.

The sides that need Lightning are left out where it is not installed; `make bench-train` installs
it into an environment of its own.
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

from harness import Clocks, misses, options, ratio, record, verdict
from setpoint.cli.output import table
from train.work import MODELS

OURS, BARE = "setpoint", "bare"
# By name: the module, the package it needs, and the least ratio of speeds that Setpoint must have.
SIDES = {
    OURS: ("setpoint_loop", "torch", 1.0),
    BARE: ("bare", "torch", 1.0),
    "HF Trainer": ("hf_trainer", "accelerate", 1.0),
    "Lightning": ("lightning_trainer", "lightning", 1.0),
}
# Updates in a block of each model; a block should take long beside a line through a pipe.
STEPS = {"tiny": 10, "18M": 2, "dust": 20}
# What a row of docs/benchmarks.md shows, by model.
SHOWN = {
    "tiny": "the same job by other trainers, `tiny` in fp32, one thread",
    "18M": "18 M parameters in fp32: level, since matrix products dominate",
}
# How far losses may lie apart: rounding, which grows with the updates in bf16.
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}
HEADINGS = ("side", "tokens/s", "setpoint / side", "by CPU time", "peak MiB", "last loss", "apart")


@dataclass
class Worker:
    """A side's process.

    Arguments:
        process: that answers each line with a line.
        wall, cpu: seconds of each block.
        losses: of all updates, at the end.
        peak: bytes, at the end.
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

    def close(self) -> None:
        """End the process, if it still runs."""
        with self.process:
            self.process.kill()

    def turn(self) -> None:
        """Let a block run."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        said = self.answer()
        self.wall.append(said["wall"])
        self.cpu.append(said["cpu"])


def main(given: Sequence[str] | None = None) -> int:
    arguments = options(
        __doc__,
        given,
        models=["tiny", "18M"],
        precisions=[*TOLERANCE],
        blocks=12,
        starts=1,
        sides=[*SIDES],
        device=("auto", "cpu", "cuda"),
    )
    there = [s for s in SIDES if s in arguments.sides or s in (OURS, BARE)]
    lacking = [name for name in there if importlib.util.find_spec(SIDES[name][1]) is None]
    sides = [name for name in there if name not in lacking]
    failed: list[str] = []
    results: dict[str, str] = {}
    for model in arguments.models:
        for precision in arguments.precisions:
            blocks = max(2, math.ceil(arguments.blocks / arguments.starts))
            starts = [
                _measured(model, precision, sides, blocks, arguments.device)
                for _ in range(arguments.starts)
            ]
            missed, speeds, memory = _table(model, precision, starts, arguments.device)
            failed += missed
            if precision == "fp32" and model in SHOWN:
                results[SHOWN[model]] = f"{speeds} by CPU time"
            if (precision, model) == ("fp32", "tiny"):
                results["peak memory above model and data, `tiny` in fp32"] = memory
    for name in lacking:
        print(f"left out: {name}, as {SIDES[name][1]} is not installed; see `make bench-train`")
    record(arguments, "train.loops", results)
    return verdict(failed, "losses agree; behind no side")


def _measured(
    model: str, precision: str, sides: Sequence[str], blocks: int, device: str
) -> dict[str, Worker]:
    """Start all sides and measure them in turns."""
    steps = STEPS[model]
    updates = (blocks + 1) * steps
    workers: dict[str, Worker] = {}
    try:
        for name in sides:
            words = (SIDES[name][0], model, precision, str(steps), str(updates), device)
            command = [sys.executable, "-m", "train.worker", *words]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            workers[name] = Worker(subprocess.Popen(command, **pipes))
            # One after the other, so that no two build at once.
            assert workers[name].answer()["ready"]
        for block in range(blocks + 1):
            for name in sides if block % 2 == 0 else reversed(sides):
                workers[name].turn()
        for worker in workers.values():
            said = worker.answer()
            worker.losses, worker.peak = said["losses"], said["peak"]
    finally:
        for worker in workers.values():
            worker.close()
    return workers


def _table(
    model: str, precision: str, starts: Sequence[dict[str, Worker]], device: str
) -> tuple[list[str], str, str]:
    """Print what was measured: the bounds missed, ratios of speeds, and peaks of memory."""
    steps, names = STEPS[model], list(starts[0])
    # The first block of each side warms up.
    clocks = Clocks(
        {name: [t for each in starts for t in each[name].wall[1:]] for name in names},
        {name: [t for each in starts for t in each[name].cpu[1:]] for name in names},
    )
    cuda = device != "cpu" and torch.cuda.is_available()
    on = torch.device("cuda" if cuda else "cpu")
    rows: list[list[str]] = []
    failed: list[str] = []
    tokens = steps * tokens_per_update(model)
    for name in names:
        worker = starts[-1][name]
        apart = max(furthest(each[OURS].losses, each[name].losses) for each in starts)
        cells = ["", ""]
        if name != OURS:
            found = ratio(clocks.wall, OURS, name)
            cells = [str(found), f"{ratio(clocks.cpu, OURS, name).median:.3f}"]
            if misses(clocks, OURS, name, SIDES[name][2], on):
                bound = SIDES[name][2]
                failed.append(f"{model} {precision}: {found.median:.3f} of {name}, below {bound}")
        if not apart <= TOLERANCE[precision]:
            failed.append(
                f"{model} {precision}: the losses of {name} are {apart:.1e} apart from "
                f"Setpoint's, above {TOLERANCE[precision]}; its speed is void"
            )
        speed = f"{tokens / statistics.median(clocks.wall[name]):,.0f}"
        memory = f"{max(each[name].peak for each in starts) / 2**20:,.0f}"
        rows.append([name, speed, *cells, memory, f"{worker.losses[-1]:.4f}", f"{apart:.1e}"])
    blocks = len(clocks.wall[OURS])
    of_starts = f" in {len(starts)} starts" if len(starts) > 1 else ""
    print(
        f"{model}, {precision}, {on.type}, {torch.get_num_threads()} threads, {blocks} blocks of "
        f"{steps} updates of each side in turn{of_starts}; ratios of speeds: median (10 %-90 %)\n"
    )
    print(table(rows, headings=HEADINGS) + "\n", flush=True)
    speeds = ", ".join(f"{name} {by_cpu}" for name, _, _, by_cpu, *_ in rows if name != OURS)
    return failed, speeds, ", ".join(f"{row[0]} {row[4]} MiB" for row in rows)


def furthest(one: Sequence[float], other: Sequence[float]) -> float:
    """How far the losses of two sides lie apart."""
    if len(one) != len(other) or not all(map(math.isfinite, (*one, *other))):
        return math.inf
    return max((abs(a - b) for a, b in zip(one, other, strict=True)), default=math.inf)


def tokens_per_update(model: str) -> int:
    """How many tokens an update has."""
    from setpoint.config.composition import compose
    from setpoint.train.config import Job

    job = compose(Job, "tiny", flags=[f"--{flag}" for flag in MODELS[model]]).resolve()
    return job.batch.global_size * job.batch.sequence_length


if __name__ == "__main__":
    sys.exit(main())
