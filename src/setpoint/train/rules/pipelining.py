"""Checks of the stages of a pipeline against the model and the batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem
from setpoint.model.config import Transformer
from setpoint.model.parts import part_names

if TYPE_CHECKING:
    from setpoint.train.config import Job


def stage_problems(job: Job) -> Iterator[Problem]:
    """Find stages that the layers are too few for, or that name other parts than the model's."""
    assert isinstance(job.model, Transformer)
    pipelining, layers = job.parallel.pipelining, job.model.layers
    ranks = job.parallel.degrees["pipeline"]
    stages = pipelining.stages(ranks)
    if pipelining.split is not None:
        yield from split_problems(pipelining.split, layers, "model.layers")
    elif stages > layers:
        each = stages // ranks
        total = f"{ranks} ranks with {each} stages each = {stages}" if each > 1 else f"{stages}"
        most = layers // each
        fit = [n for n in range(1, most + 1) if job.parallel.world_size % n == 0]
        yield Problem(
            "parallel.pipeline",
            f"{total} stages are more than the model has layers, {layers}",
            valid=[str(n) for n in sorted(fit, reverse=True)[:3]],
            also=("model.layers", "parallel.pipelining.schedule"),
        )


def split_problems(
    split: tuple[tuple[str, ...], ...], layers: int, field: str
) -> Iterator[Problem]:
    """Find stages that name other parts than a model has.

    Arguments:
        field: which decides how many layers it has.
    """
    wanted, given = part_names(layers), [name for stage in split for name in stage]
    empty = [str(number) for number, stage in enumerate(split) if not stage]
    if empty:
        yield Problem(
            f"parallel.pipelining.split.{empty[0]}", "is a stage without any part of the model"
        )
    elif given != wanted:
        missing = [name for name in wanted if name not in given]
        unknown = [name for name in given if name not in wanted]
        twice = sorted({name for name in given if given.count(name) > 1})
        why = "does not name the parts in their order"
        if missing or unknown or twice:
            said = (("lacks", missing), ("has unknown", unknown), ("repeats", twice))
            why = "; ".join(f"{word} {', '.join(names[:4])}" for word, names in said if names)
        yield Problem(
            "parallel.pipelining.split",
            why,
            valid=(f"stages of embedding, layers.0 to layers.{layers - 1}, output",),
            also=(field,),
        )


def batch_problems(job: Job) -> Iterator[Problem]:
    """Find numbers of micro-batches that a schedule does not run."""
    pipelining, count = job.parallel.pipelining, job.batch.accumulation
    ranks, share = (
        job.parallel.degrees["pipeline"],
        job.batch.global_size // job.parallel.data_ranks,
    )
    found = pipelining.batch_problem(ranks, count)
    if found is not None:
        why, valid = found
        # Numbers that divide the batch, too, unless there are none.
        even = [n for n in range(1, share + 1) if share % n == 0 and pipelining.fits(ranks, n)]
        valid = sorted(even, key=lambda n: abs(n - count))[:2] or valid
        yield Problem(
            "batch.accumulation",
            f"{count} micro-batch{'es' * (count != 1)} a step: {why}",
            valid=[str(each) for each in valid],
            also=("batch.micro_size", "batch.global_size", "parallel.pipelining.schedule"),
        )
