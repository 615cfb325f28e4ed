"""How long the search for the best topology of a 70B model takes: `python -m plan.search`.

All meshes of each number of GPUs, on H100 SXM; seconds of the CPU stand beside those that went by.
"""

from __future__ import annotations

import sys
import time

from harness import options, record
from setpoint.config.composition import compose
from setpoint.plan.gpus import gpu_named
from setpoint.plan.step_time import Kernels
from setpoint.plan.topology import Topology
from setpoint.plan.topology_search import SearchSpace, search
from setpoint.plan.workload import Workload
from setpoint.train.config import Job

AIM = 10.0
SIZES = (64, 96, 128, 192, 256, 384, 512, 768, 1024)
FLAGS = ("precision.params=fp32", "precision.compute=bf16")


def main(given: list[str] | None = None) -> int:
    """Print time and result of each search; status 1 where one takes longer than the aim."""
    chosen = options(__doc__, given, sizes=[*SIZES], source="llama3-70b")
    gpu, network = gpu_named("h100")
    limit = int(gpu.memory * 0.9)
    print(f"{'GPUs':>6} {'seconds':>8} {'CPU':>6} {'meshes':>7} {'timed':>6} {'MFU':>6}")
    times: list[float] = []
    for size in chosen.sizes:
        # Sequences that so many ranks divide, about as many as the preset has.
        sequences = 512 if 512 % size == 0 else size * max(1, 512 // size)
        flags = [*FLAGS, f"batch.global_size={sequences}", "batch.micro_size=1"]
        job = compose(Job, chosen.source, flags=flags).resolve()
        workload = Workload.of(job, job.model.vocab_size)  # pyright: ignore[reportAttributeAccessIssue]
        kernels = Kernels.of(job)
        space = SearchSpace(workload, size, Topology(), {}, gpu, network, kernels, limit)
        began, used = time.perf_counter(), time.process_time()
        found = search(space, 10)
        seconds, cpu = time.perf_counter() - began, time.process_time() - used
        times.append(seconds)
        best = f"{found.best[0].time.mfu:6.1%}" if found.best else "  none"
        print(
            f"{size:>6,} {seconds:8.2f} {cpu:6.2f} {found.meshes:>7,} {found.timed:>6,} {best}",
            flush=True,
        )
    record(chosen, "plan.search", {
        "search for a topology of `llama3-70b` on 64 to 1,024 GPUs; aim 10 s":
            f"{min(times):.1f} to {max(times):.1f} s"
    })  # fmt: skip
    print(f"longest: {max(times):.1f} s (aim {AIM:.0f} s); all together: {sum(times):.1f} s")
    return int(max(times) > AIM)


if __name__ == "__main__":
    sys.exit(main())
