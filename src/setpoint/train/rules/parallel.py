"""Cross-section checks of `[parallel]`: what the degrees of its axes divide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem
from setpoint.model.config import Transformer
from setpoint.model.divisors import nearest_divisors, nearest_multiples
from setpoint.model.vocabulary import embedding_rows
from setpoint.train.rules.vocabulary import known_vocabulary

if TYPE_CHECKING:
    from setpoint.train.config import Job

TENSOR = "parallel.tensor"


def torchft_problems(job: Job) -> Iterator[Problem]:
    """Find what replica groups that die and come back cannot do."""
    section, batch = job.parallel.torchft, job.batch
    assert section is not None
    if job.parallel.degrees["pipeline"] > 1:
        yield Problem(
            "parallel.pipeline",
            "the ranks of a replica group give each other their state, and stages gather theirs",
            valid=("1",),
            also=("parallel.torchft",),
        )
    if job.parallel.uses_deepspeed:
        yield Problem(
            "parallel.engine",
            "DeepSpeed sums and holds gradients by itself, beside those of replica groups",
            valid=("torch",),
            also=("parallel.torchft",),
        )
    if batch.accumulation % section.group_size:
        sizes = [size for size in range(1, batch.global_size + 1)
                 if batch.global_size % (size * section.group_size) == 0]  # fmt: skip
        yield Problem(
            "batch.micro_size",
            f"{batch.accumulation} micro-batches of a step cannot be divided by "
            f"{section.group_size} replica groups",
            valid=[str(size) for size in sizes[::-1][:3]],
            also=("batch.global_size", "batch.accumulation", "parallel.torchft.group_size"),
        )
    if job.seed is None:
        yield Problem(
            "seed",
            "each replica group would draw another one",
            valid=("a number, the same in all groups",),
            also=("parallel.torchft",),
        )
    for field in job.resilience.rollbacks:
        yield Problem(
            field,
            "rollback goes to a checkpoint that the other replica groups may not have",
            valid=("fail", "skip"),
            also=("parallel.torchft",),
        )
    if section.process_group == "nccl" and job.parallel.device == "cpu":
        yield Problem(
            "parallel.torchft.process_group",
            "nccl runs on GPUs, and the device is cpu",
            valid=("gloo",),
            also=("parallel.device",),
        )


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
