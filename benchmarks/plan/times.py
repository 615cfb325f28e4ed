"""How long planning takes: by arithmetic, by a dry run, and searching: `python -m plan.times`.

Arithmetic and dry runs are commands in processes of their own with one thread; arithmetic must not
import torch. The search tries all meshes of each number of GPUs, on H100 SXM. CPU seconds are
printed beside elapsed time, which other work on the machine lengthens.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from harness import Report, Used, spawn
from setpoint.config.composition import compose
from setpoint.plan.gpus import gpu_named
from setpoint.plan.step_time import Kernels
from setpoint.plan.topology import Topology
from setpoint.plan.topology_search import SearchSpace, search
from setpoint.plan.workload import Workload
from setpoint.train.config import Job

GIB = 2**30
SEARCH_AIM = 10.0
SIZES = (64, 96, 128, 192, 256, 384, 512, 768, 1024)
FLAGS = ("precision.params=fp32", "precision.compute=bf16")
CLUSTER = ("--world-size=16384", "--parallel.tensor=8", "--fake-step")
MODEL_405B = """
extends = "llama3-70b"
[model]
dim = 16384
layers = 126
heads = 128
ffn_dim = 53248
[batch]
global_size = 2048
"""


class Command(NamedTuple):
    """A job and the flags of `setpoint check`, and the seconds that it may take."""

    job: str
    flags: tuple[str, ...]
    aim: float


COMMANDS = {
    "1,024 ranks": Command(
        'extends = "llama3-70b"',
        ("--plan", "--world-size=1024", "--parallel.shard=-1", "--batch.global_size=1024",
         "--batch.micro_size=1"), 1.0,
    ),
    "100,000 ranks": Command(
        'extends = "llama3-70b"',
        ("--plan", "--world-size=100000", "--parallel.shard=625", "--parallel.tensor=8",
         "--parallel.pipeline=20", "--batch.global_size=12500", "--batch.micro_size=1"), 1.0,
    ),
    "8B, shard 1,024": Command(
        'extends = "llama3-8b"',
        ("--world-size=1024", "--parallel.shard=1024", "--batch.global_size=1024",
         "--fake-step"), 10.0,
    ),
    "405B, pipeline 16 x shard 128 x tensor 8": Command(
        MODEL_405B, (*CLUSTER, "--parallel.pipeline=16", "--parallel.shard=128"), 60.0
    ),
    "405B, shard 2,048 x tensor 8": Command(MODEL_405B, (*CLUSTER, "--parallel.shard=2048"), 60.0),
    "tiny, shard 8": Command(
        'extends = "tiny"', ("--world-size=8", "--parallel.shard=8", "--fake-step"), 60.0
    ),
}  # fmt: skip
START = (
    "import sys\n"
    "from setpoint.cli.main import main\n"
    "status = main(sys.argv[1:])\n"
    "assert '--plan' not in sys.argv or 'torch' not in sys.modules, 'torch was imported'\n"
    "sys.exit(status)\n"
)


def main(given: list[str] | None = None) -> int:
    report = Report(
        "plan.times", __doc__, given, commands=list(COMMANDS)[:-1], sizes=list(SIZES),
        source="llama3-70b",
    )  # fmt: skip
    chosen = report.options
    times: dict[str, list[str]] = {"--plan": [], "--fake-step": []}
    for name in chosen.commands:
        command = COMMANDS[name]
        seconds, cpu, resident = run(command)
        kind = next(kind for kind in times if kind in command.flags)
        times[kind].append(f"{name}: {seconds:.2f} s")
        gib = f"{resident / GIB:.2f} GiB"
        report.rows.append((name, f"{seconds:.2f}", f"{cpu:.2f}", f"{command.aim:.0f}", gib))
        report.bound(cpu <= command.aim and resident <= GIB, f"{name}: CPU {cpu:.2f} s, {gib}")
    searches: list[float] = []
    for size in chosen.sizes:
        seconds, cpu, meshes = search_time(chosen.source, size)
        searches.append(seconds)
        cells = (f"{seconds:.2f}", f"{cpu:.2f}", f"{SEARCH_AIM:.0f}", meshes)
        report.rows.append((f"search, {size:,} GPUs", *cells))
        report.bound(cpu <= SEARCH_AIM, f"search, {size:,} GPUs: {cpu:.1f} s")
    report.results = {
        "`check llama3-70b --plan`": "; ".join(times["--plan"]),
        "a dry run on one process": "; ".join(times["--fake-step"]),
        "search for a topology of `llama3-70b` on 64 to 1,024 GPUs; aim 10 s":
            f"{min(searches):.1f} to {max(searches):.1f} s",
    }  # fmt: skip
    return report.finish(("", "seconds", "CPU", "aim", "peak memory, or meshes"))


def run(command: Command) -> Used:
    """Run a command."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "job.toml")
        path.write_text(command.job)
        words = [sys.executable, "-c", START, "check", str(path), *command.flags]
        return spawn(words, {**os.environ, "OMP_NUM_THREADS": "1"})


def search_time(source: str, size: int) -> tuple[float, float, str]:
    """Search the best topology of a number of GPUs: seconds, those of the CPU, and meshes."""
    gpu, network = gpu_named("h100")
    # Sequences that so many ranks divide, about as many as the preset has.
    sequences = 512 if 512 % size == 0 else size * max(1, 512 // size)
    flags = [*FLAGS, f"batch.global_size={sequences}", "batch.micro_size=1"]
    job = compose(Job, source, flags=flags).resolve()
    workload = Workload.of(job, job.model.vocab_size)  # pyright: ignore[reportAttributeAccessIssue]
    limit = int(gpu.memory * 0.9)
    space = SearchSpace(workload, size, Topology(), {}, gpu, network, Kernels.of(job), limit)
    began, used = time.perf_counter(), time.process_time()
    found = search(space, 10)
    return time.perf_counter() - began, time.process_time() - used, f"{found.meshes:,}"


if __name__ == "__main__":
    sys.exit(main())
