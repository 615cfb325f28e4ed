"""The plan by arithmetic: how long it takes, and how near it is: `python -m plan.arithmetic`.

First `setpoint check --plan` as a process, from its start to its end, for Llama 3.1 70B on 1,024
and on 100,000 ranks; it must not import torch. Then the peak of a rank by arithmetic beside that of
a dry run, for the jobs of `plan.memory`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.ranks import fork

from harness import options, record
from plan.memory import JOBS, job_named

SECONDS = 1.0
BOUND = 0.1
"""Relative difference of the two peaks."""
RANKS = {
    "1,024": ("--world-size", "1024", "--parallel.shard", "-1", "--batch.global_size", "1024",
              "--batch.micro_size", "1"),
    "100,000": ("--world-size", "100000", "--parallel.shard", "625", "--parallel.tensor", "8",
                "--parallel.pipeline", "20", "--batch.global_size", "12500",
                "--batch.micro_size", "1"),
}  # fmt: skip
START = (
    "import sys\n"
    "from setpoint.cli.main import main\n"
    "status = main(sys.argv[1:])\n"
    "assert 'torch' not in sys.modules, 'torch was imported'\n"
    "sys.exit(status)\n"
)


def main(given: list[str] | None = None) -> int:
    """Print both; status 1 where a bound is missed."""
    chosen = options(__doc__, given, jobs=list(JOBS), repeats=5, small=False)
    times: dict[str, float] = {}
    for name, flags in RANKS.items():
        seconds = times[name] = min(timed(flags) for _ in range(chosen.repeats))
        print(f"llama3-70b on {name} ranks: {seconds:.2f} s (bound {SECONDS:.0f} s)", flush=True)
    print(f"\n{'job':28} {'ranks':>5} {'arithmetic':>11} {'dry run':>10} {'ratio':>6}  moment")
    ratios: list[float] = []
    for name in chosen.jobs:
        ranks, flags = job_named(name, chosen.small)
        counted, moment, planned = compare(flags)
        ratios.append(counted / planned)
        print(
            f"{name:28} {ranks:>5} {counted / 2**20:>8.1f}MiB {planned / 2**20:>7.1f}MiB "
            f"{counted / planned:>6.3f}  {moment}",
            flush=True,
        )
    worst = max(abs(ratio - 1) for ratio in ratios)
    record(chosen, "plan.arithmetic", {
        "peak memory by arithmetic over that of a dry run; bound 10 %":
            f"{len(ratios)} jobs: {min(ratios):.3f} to {max(ratios):.3f}",
        "time of `check llama3-70b --plan`":
            ", ".join(f"{seconds:.2f} s for {name} ranks" for name, seconds in times.items()),
    })  # fmt: skip
    print(f"furthest off: {worst:.1%} (bound {BOUND:.0%})")
    return int(max(times.values()) > SECONDS or worst > BOUND)


def timed(flags: tuple[str, ...]) -> float:
    """Seconds of a process that plans."""
    words = [sys.executable, "-c", START, "check", "llama3-70b", "--plan", *flags]
    began = time.perf_counter()
    subprocess.run(words, check=True, capture_output=True)
    return time.perf_counter() - began


def compare(flags: tuple[str, ...]) -> tuple[int, str, int]:
    """Peaks of a job's first rank in bytes: by arithmetic, when, and by a dry run."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "found"

        def plan(rank: int, store: str) -> None:
            del rank, store
            from setpoint.config.composition import compose
            from setpoint.plan.dry_run import dry_run
            from setpoint.plan.memory import rank_memory
            from setpoint.plan.topology import Topology
            from setpoint.plan.workload import Workload
            from setpoint.train.config import Job

            job = compose(Job, "tiny", flags=list(flags)).resolve()
            memory = rank_memory(Workload.of(job), Topology.of(job))
            found = (memory.total, memory.moment, dry_run(job).peak.total)
            path.write_text(json.dumps(found))

        if fork(plan, 1):
            raise SystemExit(1)
        return tuple(json.loads(path.read_text()))


if __name__ == "__main__":
    sys.exit(main())
