"""Cross-section checks of experts and the ranks that divide them."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import TYPE_CHECKING

from setpoint.adapter.plan import quantized_sites, sites_of
from setpoint.config import Problem
from setpoint.model.config import Transformer
from setpoint.model.divisors import nearest_divisors
from setpoint.model.parameters import parameters_of

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
    else:
        yield from _cut_blocks(job, width)
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


def _cut_blocks(job: Job, width: int) -> Iterator[Problem]:
    """Find quantized experts of which ranks would have parts of blocks."""
    model, ranks, adapter = job.model, job.parallel.expert_tensor, job.adapter
    if ranks == 1 or adapter is None or adapter.quantize is None or not adapter.can_be_searched:
        return
    assert isinstance(model, Transformer)
    quantize = adapter.quantize
    for site in quantized_sites(adapter, sites_of(parameters_of(model, 1))):
        if site.form != "experts":
            continue
        into = site.path.endswith(".down")
        block = (quantize.columns or 1) if into else quantize.rows
        if width // ranks % block == 0:
            continue
        degrees = [n for n in range(2, ranks) if width % (n * block) == 0]
        sizes = [n for n in range(2, block, 2) if width // ranks % n == 0]
        smaller = f"set adapter.quantize.group_size = {sizes[-1]}, or " if sizes else ""
        yield Problem(
            "parallel.expert_tensor",
            f"leaves each of {ranks} ranks {width // ranks} of the {width} "
            f"{'inputs' if into else 'outputs'} of {site.path}, and would cut its blocks of "
            f"{block} quantized weights",
            valid=["1", *(f"{n} (with parallel.tensor = {n})" for n in degrees)],
            also=("adapter.quantize", "parallel.tensor"),
            hint=f"Or {smaller}leave it out by adapter.quantize.exclude.",
        )
        return
