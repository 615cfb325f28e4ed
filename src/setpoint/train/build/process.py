"""What a job sets for the whole process, and what it runs on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from setpoint.compile.settings import compiling
from setpoint.memory.allocator import expandable_segments
from setpoint.memory.heap import keep_freed
from setpoint.parallel.determinism import determinism
from setpoint.precision.autocast import fp32_products
from setpoint.precision.float8 import compiled_as_eager

if TYPE_CHECKING:
    from setpoint.train.config import Job


@contextmanager
def settings_of(job: Job) -> Iterator[None]:
    """Set what a job is built and trained under.

    Returns:
        a context, after which all is as it was before, however it was left.

    Raises:
        SetpointError: the folder for compiled code cannot be made or written to.
        RunError: in place of what PyTorch raises at an operation that has no deterministic form.
    """
    heap = keep_freed(job.memory.keep_freed)
    segments = expandable_segments(job.memory.expandable_segments)
    products = fp32_products(bool(job.precision.tf32))
    rounding = compiled_as_eager(job.precision.float8, job.compile is not None)
    parallel = job.parallel
    compiler = compiling(job.compile, parallel.splits_backward, parallel.async_tensor_parallel)
    with heap, segments, determinism(job.deterministic), products, rounding, compiler:
        yield


def device_line(job: Job, device: torch.device) -> str:
    """What a run is about to run on, and how.

    Returns:
        for instance `device: cuda:0 (NVIDIA H100 80GB HBM3), 8 ranks: shard 8 (FSDP2), fp32
        computed in bf16`.
    """
    name = str(device)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        name = f"cuda:{index} ({torch.cuda.get_device_name(index)})"
    stored, compute = job.precision.params, job.precision.compute
    formats = stored if stored == compute else f"{stored} computed in {compute}"
    topology = job.parallel.topology
    machine = os.environ.get("LOCAL_WORLD_SIZE", "")
    if machine.isdecimal() and 0 < int(machine) < job.parallel.world_size:
        count = -(-job.parallel.world_size // int(machine))
        topology = topology.replace("ranks", f"ranks on {count} machines", 1)
    return f"device: {name}, {topology}, {formats}"
