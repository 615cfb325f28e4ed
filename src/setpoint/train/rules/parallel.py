"""Cross-section checks of `[parallel]`: what the degrees of its axes divide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem
from setpoint.model.config import Transformer
from setpoint.model.divisors import nearest_divisors
from setpoint.model.vocabulary import embedding_rows
from setpoint.train.batch import nearest_multiples
from setpoint.train.rules.vocabulary import known_vocabulary

if TYPE_CHECKING:
    from setpoint.train.config import Job

TENSOR = "parallel.tensor"


def tensor_problems(job: Job) -> Iterator[Problem]:
    """Find what tensor parallelism cannot divide of a transformer and of its sequences."""
    model, ranks = job.model, job.parallel.degrees["tensor"]
    assert isinstance(model, Transformer)
    yield from _undivided(ranks, model.heads, "heads", "model.heads")
    if model.mla is None and model.kv_heads % ranks and ranks % model.kv_heads:
        valid = [n for n in range(1, model.heads + 1) if model.heads % n == 0]
        fits = [n for n in valid if n % model.kv_heads == 0 or model.kv_heads % n == 0]
        yield Problem(
            TENSOR,
            f"{ranks} ranks can neither divide the {model.kv_heads} key-value heads nor share them "
            f"equally",
            valid=[str(n) for n in sorted(fits, key=lambda n: abs(n - ranks))[:3]],
            also=("model.kv_heads",),
        )
    moe = model.moe
    if moe is None or not all(moe.has_experts(layer) for layer in range(model.layers)):
        yield from _undivided(ranks, model.ffn_dim, "inner components", "model.ffn_dim")
    if moe is not None and moe.shared_experts:
        width = moe.shared_experts * moe.width(model.ffn_dim)
        yield from _undivided(
            ranks, width, "inner components of shared experts", "model.moe.shared_experts"
        )
    tokens = known_vocabulary(job.tokenizer)
    rows = 0 if tokens is None else embedding_rows(model, tokens)
    if rows and rows <= (ranks - 1) * -(-rows // ranks):
        yield Problem(
            TENSOR,
            f"{ranks} ranks with {-(-rows // ranks)} rows of the embedding each leave none of the "
            f"{rows} for the last one",
            also=("model.vocab_size",),
        )
    if job.parallel.sequence_parallel:
        yield from _undivided_sequences(job)


def _undivided(ranks: int, count: int, what: str, field: str) -> Iterator[Problem]:
    if count % ranks:
        yield Problem(
            TENSOR,
            f"{ranks} ranks cannot divide {count} {what}",
            valid=[str(n) for n in nearest_divisors(count, ranks)],
            also=(field,),
        )


def _undivided_sequences(job: Job) -> Iterator[Problem]:
    """Lengths of rows that do not fall into equal parts."""
    step = job.parallel.degrees["tensor"] * job.parallel.sequence_multiple
    lengths = {
        "batch.sequence_length": job.batch.sequence_length,
        "data.packing.pad_to_multiple_of": job.data.packing.pad_to_multiple_of,
    }
    for field, length in lengths.items():
        if length is not None and length % step:
            yield Problem(
                field,
                f"{length} tokens do not fall into {step} equal parts, as sequence parallelism "
                f"divides them",
                valid=[str(size) for size in nearest_multiples(length, step)],
                also=("parallel.sequence_parallel", TENSOR),
            )
