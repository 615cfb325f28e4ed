"""Fit of a job to a GPU: cautions about memory and kernels, and settings that make it fit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import takewhile
from math import gcd, inf
from typing import Any, NamedTuple

from setpoint.config import Caution, ConfigError
from setpoint.loss.config import CrossEntropy
from setpoint.memory.config import Full
from setpoint.model.attention.selection import HARDWARE
from setpoint.model.config import TransformerConfig
from setpoint.plan.gpus import GpuSpec, usable
from setpoint.plan.memory import RankMemory, rank_memory
from setpoint.plan.topology import Topology
from setpoint.plan.workload import Workload
from setpoint.train.config import Job
from setpoint.units.size import in_units

EXCEEDS = "memory-exceeds-gpu"
LACKS = "gpu-lacks-kernels"
"""Codes of the cautions."""
BF16 = 8.0
"""First CUDA compute capability with bf16 matrix products."""
MAX_RANKS = 2**16
"""Largest number of ranks to try."""
RECOMPUTE = "--memory.activation_checkpointing"


class Gpu(NamedTuple):
    """GPU of a job, with its memory in bytes."""

    title: str
    memory: int


def gpu_of(spec: GpuSpec | None, name: str, job: Job) -> Gpu | None:
    """The chosen GPU, or this machine's GPU if torch is already imported."""
    if spec is not None:
        return Gpu(spec.title or name, int(spec.memory))
    torch: Any = sys.modules.get("torch")
    if torch is None or job.parallel.device == "cpu" or not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    return Gpu(properties.name, properties.total_memory)


def job_memory(job: Job, rank: int = 0) -> RankMemory:
    """Planned memory of a rank."""
    return rank_memory(Workload.of(job), Topology.of(job), rank)


def memory_caution(
    job: Job, memory: RankMemory, gpu: Gpu, change: Callable[[list[str]], Job]
) -> Caution | None:
    """Caution that a rank needs more memory than its GPU has, with settings that would fit."""
    limit = usable(gpu.memory)
    if memory.unknown or memory.total <= limit or EXCEEDS in job.silence:
        return None
    fitting = settings_that_fit(job, limit, change)
    if fitting is not None:
        settings, total = fitting
        hint = f"It needs {in_units(total)} with {' '.join(settings)}"
    else:
        more = ranks_that_fit(job, limit, change)
        hint = "No recomputation, chunked loss, sharding or smaller micro-batch makes it fit here"
        if more is not None:
            ranks, settings = more
            hint += f". On {ranks:,} ranks it fits {'with ' if settings else 'as it is'}"
            hint += " ".join(settings)
    return Caution(
        EXCEEDS,
        "memory",
        f"a rank needs {in_units(memory.total)}, but tensors can use only {in_units(limit)} of "
        f"the {in_units(gpu.memory)} of a GPU ({gpu.title}): the run would run out of memory",
        hint=f"{hint}.",
    )


def hardware_cautions(job: Job, spec: GpuSpec) -> Iterator[Caution]:
    """Number formats and kernels of a job that a GPU lacks."""
    capability = spec.capability
    if capability is None or LACKS in job.silence:
        return
    named = f"{spec.title} (compute capability {capability})"
    precision = job.precision
    if precision.compute == "bf16" and capability < BF16:
        yield Caution(
            LACKS, "precision.compute", f"{named} has no bf16 matrix products",
            hint=f"It needs {BF16} or higher: compute in fp16 or fp32.",
        )  # fmt: skip
    if precision.float8 is not None and not precision.float8.emulate:
        needed, generation = precision.float8.capability
        if capability < float(f"{needed[0]}.{needed[1]}"):
            yield Caution(
                LACKS, "precision.float8.recipe",
                f"{named} has no {precision.float8.recipe} matrix products",
                hint=f"It needs {generation} or newer.",
            )  # fmt: skip
    if isinstance(job.model, TransformerConfig) and job.model.attention_backend in HARDWARE:
        least, most = HARDWARE[job.model.attention_backend]
        if not least <= capability <= most:
            bound = f"{least} or more" if most == inf else f"{least} to {most}"
            yield Caution(
                LACKS, "model.attention_backend",
                f"{named} has no kernels of {job.model.attention_backend}",
                hint=f"It needs {bound}; auto chooses a backend for the GPU.",
            )  # fmt: skip


def settings_that_fit(
    job: Job, limit: int, change: Callable[[list[str]], Job]
) -> tuple[list[str], int] | None:
    """Find the fewest overrides with which a rank fits, fastest first, and the resulting bytes."""
    texts: list[str] = []
    for step in _steps(job):
        # Of a field the last one holds.
        path = step[0].partition("=")[0]
        tried = [*(setting for setting in texts if setting.partition("=")[0] != path), *step]
        total = _total(tried, change)
        if total is None:
            continue
        texts = tried
        if total <= limit:
            for text in list(texts[:-1]):
                fewer = [setting for setting in texts if setting != text]
                less = _total(fewer, change)
                if less is not None and less <= limit:
                    texts, total = fewer, less
            return texts, total
    return None


def ranks_that_fit(
    job: Job, limit: int, change: Callable[[list[str]], Job]
) -> tuple[int, list[str]] | None:
    """Find a power of two of ranks that fits with sharded weights, and the required overrides."""
    texts: list[str] = []
    for step in _steps(job):
        path = step[0].partition("=")[0]
        tried = [*(setting for setting in texts if setting.partition("=")[0] != path), *step]
        if _total(tried, change) is not None:
            texts = tried
    ways = [(job, list[str]()), (change(texts), texts)]
    planned = [(Workload.of(setting), Topology.of(setting), t) for setting, t in ways]
    times = 2
    while planned[0][1].world_size * times <= MAX_RANKS:
        for workload, topology, settings in planned:
            larger = topology._replace(shard=topology.shard * times)
            if rank_memory(workload, larger).total <= limit:
                return larger.world_size, settings
        times *= 2
    return None


def _steps(job: Job) -> Iterator[list[str]]:
    """Overrides that reduce memory, each applied on top of the previous ones."""
    if type(job.loss) is CrossEntropy:
        yield ["--loss=chunked_cross_entropy"]
    ranks, moe = job.parallel.world_size, getattr(job.model, "moe", None)
    if moe is not None and job.parallel.expert == 1:
        for degree in (8, 64):
            if gcd(ranks, moe.experts) % degree == 0:
                yield [f"--parallel.expert={degree}"]
    if job.parallel.degrees["replicate"] > 1:
        yield ["--parallel.shard=-1", "--parallel.replicate=null"]
    section = job.memory.activation_checkpointing
    if section is None:
        yield [f"{RECOMPUTE}=operators"]
    if not isinstance(section, Full) or section.every > 1:
        more = [f"{RECOMPUTE}.every=1"] if section is not None and section.every > 1 else []
        yield [f"{RECOMPUTE}=full", *more]
    size = job.batch.micro_size
    halves = (size // 2**times for times in range(1, size.bit_length()))
    for size_tried in takewhile(lambda half: half > 0, halves):
        if size % size_tried == 0:
            count = job.batch.accumulation * size // size_tried
            yield [f"--batch.micro_size={size_tried}", f"--batch.accumulation={count}"]


def _total(texts: list[str], change: Callable[[list[str]], Job]) -> int | None:
    """Bytes of a rank with overrides; None if a rule refuses them or the memory is unknown."""
    try:
        memory = job_memory(change(texts))
    except ConfigError:
        return None
    return None if memory.unknown else memory.total
