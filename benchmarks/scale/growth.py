"""Weak scaling and start-up of ranks on one machine: `python -m scale.growth`.

Each rank has the same work, so that with as many free cores as ranks and a network that costs
nothing the tokens of all ranks would be N times those of one. Ranks of one machine share its cores,
its caches and its memory, and gloo moves gradients through the loopback interface: the figures say
what one machine gains, and nothing of a cluster.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch.distributed as dist
from tests.support.ranks import fork_group

from harness import options, record, setpoint_step
from scale.overhead import MODELS, job_of


def weak(rank: int, store: str, arguments: Any, ranks: int) -> None:
    """One rank of a job whose global batch grows with the ranks."""
    job = job_of(arguments.model, ranks)
    step = setpoint_step(job)
    for _ in range(2):
        step()
    seconds: list[float] = []
    for _ in range(arguments.steps):
        dist.barrier()
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    if rank == 0:
        tokens = job.batch.global_size * job.batch.sequence_length
        print(f"{tokens / statistics.median(seconds):.1f}", file=arguments.answers, flush=True)


def scaled(arguments: Any) -> list[str]:
    """Print the tokens a second of 1, 2, 4 ranks; the shares of N times one."""
    alone = 0.0
    shares: list[str] = []
    for ranks in arguments.ranks:
        with tempfile.TemporaryFile("w+") as answers:
            arguments.answers = answers
            code = fork_group(lambda rank, store, n=ranks: weak(rank, store, arguments, n), ranks)
            if code:
                raise SystemExit(code)
            answers.seek(0)
            speed = float(answers.read())
        alone = alone or speed / ranks
        share = speed / (alone * ranks)
        shares.append(f"{ranks} ranks {share:.0%}")
        print(f"{ranks} ranks: {speed:,.0f} tokens/s, {share:.0%} of {ranks} times one", flush=True)
    return shares


def started(ranks: int) -> tuple[float, float]:
    """Seconds by the clock and of all processors that `setpoint train` takes for one step."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "setpoint", "train", "tiny", "--with", "smoke(steps=1)",
            "--workspace", folder, "--evaluation", "null", "--checkpoint.last", "none",
            "--checkpoint.at_start", "false", "--tracking.progress", "none",
        ]  # fmt: skip
        if ranks > 1:
            command += ["--nproc", str(ranks)]
        before, began = os.times(), time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wall, after = time.perf_counter() - began, os.times()
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    used = after.children_user + after.children_system
    return wall, used - before.children_user - before.children_system


def main(given: list[str] | None = None) -> int:
    """Measure both."""
    arguments = options(
        __doc__, given, ranks=[1, 2, 4], model=("4M", *list(MODELS)), steps=10, starts=3
    )
    print(f"{len(os.sched_getaffinity(0))} cores, one thread a rank")
    shares = scaled(arguments)
    alone = (0.0, 0.0)
    starts: list[str] = []
    for ranks in arguments.ranks if arguments.starts else ():
        runs = [started(ranks) for _ in range(arguments.starts)]
        wall, cpu = (statistics.median(each) for each in zip(*runs, strict=True))
        alone = (wall, cpu) if ranks == 1 else alone
        against = f", {cpu / (ranks * alone[1]):.2f} of {ranks} times one" if alone[1] else ""
        starts.append(f"{ranks} ranks {wall:.1f} s")
        print(f"{ranks} ranks: a run of a step in {wall:.1f} s; CPU {cpu:.1f} s{against}")
    record(arguments, "scale.growth", {
        "weak scaling: tokens/s of N ranks over N times those of one": ", ".join(shares),
        "time of a run of one step": ", ".join(starts),
    })  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
