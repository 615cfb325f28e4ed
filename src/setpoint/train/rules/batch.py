"""Cross-section checks of `[batch]`."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from setpoint.config import Problem, is_set
from setpoint.train.batch import batch_sum, nearest_multiples

if TYPE_CHECKING:
    from setpoint.train.config import Job


def sum_problems(job: Job) -> Iterator[Problem]:
    """Find sizes whose product is not the global size."""
    batch, ranks = job.batch, job.parallel.data_ranks
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
