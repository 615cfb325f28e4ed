"""The caution of `setpoint check` where a rank takes more memory than a GPU has."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from setpoint.config import Caution, ConfigError
from setpoint.loss.config import CrossEntropy
from setpoint.memory.config import Full
from setpoint.plan.groups import vocabulary_of
from setpoint.plan.machines import Machine, usable
from setpoint.plan.memory import RankMemory, rank_memory
from setpoint.plan.topology import Topology
from setpoint.plan.workload import Workload
from setpoint.units.size import in_units

if TYPE_CHECKING:
    from setpoint.train.config import Job

CODE = "memory-exceeds-gpu"
MOST_RANKS = 2**16
RECOMPUTE = "--memory.activation_checkpointing"


class Gpu(NamedTuple):
    """A GPU that a job is to run on, and its bytes of memory."""

    title: str
    memory: int


def gpu_of(machine: Machine | None, name: str, job: Job) -> Gpu | None:
    """The GPU that was asked for, or the one of this machine where torch is imported anyway."""
    if machine is not None:
        return Gpu(machine.title or name, int(machine.memory))
    torch: Any = sys.modules.get("torch")
    if torch is None or job.parallel.device == "cpu" or not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    return Gpu(found.name, found.total_memory)


def memory_of(job: Job, rank: int = 0) -> RankMemory:
    """The planned memory of a rank."""
    return rank_memory(Workload.of(job, vocabulary_of(job)), Topology.of(job), rank)


def memory_caution(
    job: Job, memory: RankMemory, gpu: Gpu, change: Callable[[list[str]], Job]
) -> Caution | None:
    """Compare the memory of a rank with that of a GPU.

    Arguments:
        change: the job with more overrides.

    Returns:
        a caution with the settings by which the job fits; None if it fits already, or where its
        activations are not known.
    """
    limit = usable(gpu.memory)
    if memory.unknown or memory.total <= limit or CODE in job.silence:
        return None
    found = settings_that_fit(job, limit, change)
    if found is not None:
        settings, total = found
        hint = f"It takes {in_units(total)} with {' '.join(settings)}"
    else:
        ranks = ranks_that_fit(job, limit, change)
        hint = "No recomputation, chunked loss, sharding or smaller micro-batch makes it fit here"
        if ranks is not None:
            hint += f"; {ranks:,} ranks with all of these do (shard = {ranks:,})"
    return Caution(
        CODE,
        "memory",
        f"a rank takes {in_units(memory.total)}, and tensors have {in_units(limit)} of the "
        f"{in_units(gpu.memory)} of a GPU ({gpu.title}): the run would end out of memory",
        hint=f"{hint}.",
    )


def settings_that_fit(
    job: Job, limit: int, change: Callable[[list[str]], Job]
) -> tuple[list[str], int] | None:
    """Find overrides with which a rank fits, the cheapest in time first.

    Returns:
        as few as make it fit, and the bytes of a rank with them; None if all of them do not.
    """
    texts: list[str] = []
    for step in _steps(job):
        # Of a field the last one holds.
        path = step[0].partition("=")[0]
        tried = [*(each for each in texts if each.partition("=")[0] != path), *step]
        total = _total(tried, change)
        if total is None:
            continue
        texts = tried
        if total <= limit:
            for text in list(texts[:-1]):
                fewer = [each for each in texts if each != text]
                less = _total(fewer, change)
                if less is not None and less <= limit:
                    texts, total = fewer, less
            return texts, total
    return None


def ranks_that_fit(job: Job, limit: int, change: Callable[[list[str]], Job]) -> int | None:
    """Find how many ranks that shard the weights are enough, in powers of two."""
    texts: list[str] = []
    for step in _steps(job):
        if _total([*texts, *step], change) is not None:
            texts += step
    least = change(texts)
    workload, topology = Workload.of(least, vocabulary_of(least)), Topology.of(least)
    shard = topology.shard
    while topology.world_size < MOST_RANKS:
        shard *= 2
        topology = topology._replace(shard=shard)
        if rank_memory(workload, topology).total <= limit:
            return topology.world_size
    return None


def _steps(job: Job) -> Iterator[list[str]]:
    """Overrides that save memory, each with those before it."""
    if type(job.loss) is CrossEntropy:
        yield ["--loss=chunked_cross_entropy"]
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
    for each in takewhile(lambda each: each > 0, halves):
        if size % each == 0:
            count = job.batch.accumulation * size // each
            yield [f"--batch.micro_size={each}", f"--batch.accumulation={count}"]


def _total(texts: list[str], change: Callable[[list[str]], Job]) -> int | None:
    """Bytes of a rank with overrides; None where rules refuse them, or it is not known."""
    try:
        memory = memory_of(change(texts))
    except ConfigError:
        return None
    return None if memory.unknown else memory.total
