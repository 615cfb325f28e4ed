"""How long a dry run of a large model takes, and how much memory: `python -m plan.dry_run`.

Each runs as `setpoint check --fake-step`, a process of its own with one thread. Seconds of the CPU
stand beside those that went by, which other work on the machine makes longer.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from pathlib import Path

from harness import options, record

GIB = 2**30
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
CLUSTER = ("--world-size=16384", "--parallel.tensor=8")
JOBS: dict[str, tuple[str, tuple[str, ...], float]] = {
    "8B, shard 1,024": (
        'extends = "llama3-8b"',
        ("--world-size=1024", "--parallel.shard=1024", "--batch.global_size=1024"),
        10.0,
    ),
    "405B, pipeline 16 x shard 128 x tensor 8": (
        MODEL_405B,
        (*CLUSTER, "--parallel.pipeline=16", "--parallel.shard=128"),
        60.0,
    ),
    "405B, shard 2,048 x tensor 8": (MODEL_405B, (*CLUSTER, "--parallel.shard=2048"), 60.0),
    "tiny, shard 8": ('extends = "tiny"', ("--world-size=8", "--parallel.shard=8"), 60.0),
}


def main(given: list[str] | None = None) -> int:
    """Print time and memory of each dry run; status 1 where one misses its aim."""
    chosen = options(__doc__, given, jobs=list(JOBS)[:3])
    print(f"{'job':42} {'seconds':>8} {'CPU':>6} {'aim':>6} {'resident':>9}")
    missed = False
    times: list[str] = []
    for name in chosen.jobs:
        text, flags, aim = JOBS[name]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "job.toml")
            path.write_text(text)
            seconds, cpu, memory = _run("check", str(path), *flags, "--fake-step")
        print(f"{name:42} {seconds:8.1f} {cpu:6.1f} {aim:6.0f} {memory / GIB:5.2f} GiB", flush=True)
        times.append(f"{name}: {seconds:.1f} s")
        missed |= seconds > aim or memory > GIB
    record(chosen, "plan.dry_run", {"time of a dry run on one process": "; ".join(times)})
    return int(missed)


def _run(*words: str) -> tuple[float, float, int]:
    """Run a command: its seconds, those of the CPU, and its highest resident memory."""
    began = time.perf_counter()
    child = os.fork()
    if not child:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        os.execve(sys.executable, [sys.executable, "-m", "setpoint", *words], environment)
    _, status, used = os.wait4(child, 0)
    if status:
        raise SystemExit(f"the command has failed with status {os.waitstatus_to_exitcode(status)}")
    return _seconds(began, used)


def _seconds(began: float, used: resource.struct_rusage) -> tuple[float, float, int]:
    return time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
