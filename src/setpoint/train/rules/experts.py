"""Cross-section checks of experts and the ranks that divide them."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import TYPE_CHECKING

from setpoint.config import Problem
from setpoint.model.config import Transformer
from setpoint.model.divisors import nearest_divisors

if TYPE_CHECKING:
    from setpoint.train.config import Job


def expert_problems(job: Job) -> Iterator[Problem]:
    """Find experts, and widths of experts, that do not divide by the degrees."""
    model, parallel = job.model, job.parallel
    assert isinstance(model, Transformer) and model.moe is not None
    experts, width = model.moe.experts, model.moe.width(model.ffn_dim)
    ranks = parallel.expert * parallel.expert_shards
    if experts % parallel.expert:
        yield Problem(
            "parallel.expert",
            f"{experts} experts cannot be divided among {parallel.expert} ranks",
            valid=[str(n) for n in nearest_divisors(gcd(experts, ranks), parallel.expert)],
            also=("model.moe.experts",),
        )
        return
    if width % parallel.expert_tensor:
        field = "model.ffn_dim" if model.moe.expert_dim is None else "model.moe.expert_dim"
        yield Problem(
            "parallel.expert_tensor",
            f"the width of {width} of an expert cannot be divided among "
            f"{parallel.expert_tensor} ranks",
            valid=("1",),
            also=(field, "parallel.tensor"),
        )
    here, shards = experts // parallel.expert, parallel.expert_shards
    if here % shards and model.dim % shards:
        yield Problem(
            "parallel.expert",
            f"leaves {shards} ranks to shard {here} expert{'s' * (here != 1)}, and divides neither "
            f"these nor dim = {model.dim} by {shards}",
            valid=[
                str(n)
                for n in nearest_divisors(gcd(experts, ranks), parallel.expert, 8)
                if n == 1 or not (experts // n % (ranks // n) and model.dim % (ranks // n))
            ],
            also=("model.moe.experts", "model.dim"),
        )
