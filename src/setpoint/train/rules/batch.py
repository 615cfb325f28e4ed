"""Cross-section checks of `[batch]`."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from setpoint.config import Problem, is_set
from setpoint.model.config import Transformer
from setpoint.model.divisors import nearest_divisors, nearest_multiples
from setpoint.train.batch import batch_sum

if TYPE_CHECKING:
    from setpoint.train.config import Job


def load_problems(job: Job) -> Iterator[Problem]:
    """Find micro-batches that do not fall into the parts that experts are balanced over."""
    assert isinstance(job.model, Transformer) and job.model.moe is not None
    size, micro = job.model.moe.load_sequences, job.batch.micro_size
    if size is not None and micro % size:
        yield Problem(
            "model.moe.load_sequences",
            f"micro-batches of {micro} sequences do not fall into parts of {size}",
            valid=[str(each) for each in nearest_divisors(micro, size)],
            also=("batch.micro_size",),
        )


def sum_problems(job: Job) -> Iterator[Problem]:
    """Find sizes whose product is not the global size."""
    batch, ranks = job.batch, job.parallel.data_ranks
    if prod(job.parallel.degrees.values()) != job.parallel.world_size:
        return  # which is reported; so many ranks for data were not asked for
    portion = batch.micro_size * batch.accumulation * ranks
    given = [name for name in ("micro_size", "accumulation") if is_set(batch, name)]
    also = (*(f"batch.{name}" for name in given), "parallel.world_size")
    if len(given) == 2:
        total = batch_sum(portion, batch.micro_size, batch.accumulation, ranks)
        yield Problem(
            "batch.global_size",
            f"{batch.global_size} sequences contradict the other sizes: {total}",
            valid=(str(portion),),
            also=also,
            hint="Give two of the three sizes; the third is derived.",
        )
        return
    # What is derived has been rounded; what is given decides which sizes come out even.
    parts = [(getattr(batch, name), name.removesuffix("_size")) for name in given]
    parts.append((ranks, "ranks"))
    step = prod(size for size, _ in parts)
    factors = " * ".join(f"{size} ({name})" for size, name in parts)
    yield Problem(
        "batch.global_size",
        f"{batch.global_size} sequences cannot be divided by {step}"
        + (f" = {factors}" if given else " ranks"),
        valid=[str(size) for size in nearest_multiples(batch.global_size, step)],
        also=also,
    )
