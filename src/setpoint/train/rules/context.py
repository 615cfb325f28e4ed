"""Cross-section checks of sequences that ranks divide: `parallel.ring` and `parallel.ulysses`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem
from setpoint.model.config import Transformer
from setpoint.model.divisors import nearest_divisors, nearest_multiples

if TYPE_CHECKING:
    from setpoint.train.config import Job


def context_problems(job: Job) -> Iterator[Problem]:
    """Find sequences and heads that do not divide among the ranks of a sequence."""
    parallel, length = job.parallel, job.batch.sequence_length
    degrees, multiple = parallel.degrees, parallel.sequence_multiple
    used = [axis for axis in ("ring", "ulysses") if degrees[axis] > 1]
    # Sequence parallelism divides further, and a check of its own says by how much.
    is_divided_further = parallel.sequence_parallel and degrees["tensor"] > 1
    if length % multiple and not is_divided_further:
        factors = [f"{degrees[axis]} ({axis})" for axis in used]
        if multiple > parallel.context:
            factors.append("2 (ring_split = zigzag)")
        total = f" = {multiple}" if len(factors) > 1 else ""
        yield Problem(
            "batch.sequence_length",
            f"{length} tokens are no multiple of {' * '.join(factors)}{total}",
            valid=[str(each) for each in nearest_multiples(length, multiple)],
            also=tuple(f"parallel.{axis}" for axis in used),
        )
    if not isinstance(job.model, Transformer):
        return
    tensor, ulysses = degrees["tensor"], degrees["ulysses"]
    heads = job.model.heads // tensor
    if heads % ulysses:
        where = f"a rank has of {job.model.heads} (parallel.tensor = {tensor})"
        yield Problem(
            "parallel.ulysses",
            f"{ulysses} ranks cannot divide the {heads} heads "
            f"{where if tensor > 1 else 'of the model'}",
            valid=[str(each) for each in nearest_divisors(heads, ulysses)],
            also=("model.heads", *(("parallel.tensor",) if tensor > 1 else ())),
            hint="parallel.ring divides sequences whatever the number of heads is.",
        )
