"""The table of what pieces keep, against runs of the pieces."""

import random
from pathlib import Path

import pytest

import setpoint.presets  # noqa: F401 - registers the presets
from setpoint.config.composition import compose
from setpoint.config.layers.presets import presets
from setpoint.memory.config import CheckpointedParts, Full, Operators
from setpoint.model.config import TransformerConfig
from setpoint.plan.memory import (
    kept_for_backward,
    known_keys,
    missing,
    peak_of,
    rank_memory,
    value_of,
)
from setpoint.plan.pieces import layer_pieces, outer_pieces
from setpoint.plan.topology import Recompute, Topology
from setpoint.plan.workload import Workload
from setpoint.train.config import Job

from ..train.small import small_job
from .activations import DROPPED, SDPA, WINDOW, draw, measure, pieces_of, variants, words_of

SAMPLE = 6
"""Variants that are measured again in the short form, others in each run."""


def check(flags: tuple[str, ...], seen: set[str]) -> None:
    """Measure the pieces of one variant again, at sizes that the table was not made from."""
    job, rows = draw(flags, 1000)
    for piece, role in pieces_of(job):
        words = words_of(flags) if role == "attention" else ""
        key = piece.key + words
        if key in seen:
            continue
        seen.add(key)
        entry = known_keys()[key]
        sizes, found = measure(job, rows, piece, words_of(flags))
        kept = sum(number * value_of(name, sizes) for name, number in entry["kept"].items())
        assert kept == pytest.approx(found.kept, abs=16), key
        # Moments that are the highest at sizes of real models only are in the table.
        highest = peak_of(entry, sizes)
        assert 0.75 * max(found.alive) <= highest <= max(found.alive) + 16, key


def test_pieces_keep_what_the_table_says() -> None:
    seen: set[str] = set()
    for flags in random.Random(0).sample(list(variants()), SAMPLE):
        check(flags, seen)
    assert len(seen) > SAMPLE


@pytest.mark.slow
def test_the_whole_table() -> None:
    seen: set[str] = set()
    for flags in variants():
        check(flags, seen)
    assert seen == set(known_keys())


def test_all_presets_are_in_the_table() -> None:
    known: list[str] = []
    for name in presets:
        job = compose(Job, name).resolve()
        if job.adapter is not None:
            continue
        vocabulary = getattr(job.model, "vocab_size", None) or 257
        workload = Workload.of(job, vocabulary)
        assert not missing(workload, Topology.of(job)), name
        known.append(name)
    assert len(known) > 10


def test_what_is_not_in_the_table_is_not_guessed(tmp_path: Path) -> None:
    job = small_job(tmp_path, "model.attention_soft_cap=5", "model.attention_dropout=0.1")
    memory = rank_memory(Workload.of(job, 257), Topology.of(job))
    assert memory.unknown == (
        "the saved activations were never measured for: attention with rotary positions, eager, "
        "a soft cap, dropout, weights of 4 bytes computed in 4"
    )
    assert memory.activations == 0


def test_recomputation_keeps_less_and_computes_a_layer_at_a_time(tmp_path: Path) -> None:
    found = {}
    for policy in (
        Recompute(),
        Recompute(Full),
        Recompute(Operators, ("attention", "matmul")),
        Recompute(CheckpointedParts, ("attention",)),
    ):
        for layers in (2, 4):
            job = small_job(tmp_path, f"model.layers={layers}")
            topology = Topology.of(job)._replace(recompute=policy)
            found[str(policy), layers] = kept_for_backward(Workload.of(job, 257), topology)
    of_layer = {policy: found[policy, 4] - found[policy, 2] for policy, _ in found}
    assert of_layer["full"] < of_layer["operators:attention+matmul"] < of_layer["none"]
    assert of_layer["full"] < of_layer["parts:attention"] < of_layer["none"]
    job = small_job(tmp_path)
    tokens = job.batch.micro_size * job.batch.sequence_length
    # The residual stream before each of two layers, in fp32.
    assert of_layer["full"] == 2 * tokens * Workload.of(job, 257).dim * 4


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("parallel.device=cpu", "data.packing.isolate=true"), "kernel masked"),
        (("parallel.device=cuda", "data.packing.isolate=true", SDPA), "kernel masked"),
        (("parallel.device=cpu", "model.attention_soft_cap=5"), "eager capped"),
        (("parallel.device=cuda", "model.attention_soft_cap=5"), "kernel"),
        (("parallel.device=cpu", *WINDOW), "kernel window"),
        (("parallel.device=cuda", "model.kv_heads=2", SDPA, *WINDOW), "kernel window repeated"),
        (("parallel.device=cpu", DROPPED), "kernel dropout"),
        (("parallel.device=cuda", DROPPED, "data.packing.isolate=true"), "kernel masked"),
    ],
)
def test_masks_have_their_price_where_they_are(flags: tuple[str, ...], words: str) -> None:
    flags = (*flags, "precision.compute=bf16", "precision.params=fp32", "model.head_dim=32")
    job = compose(Job, flags=flags).resolve()
    assert isinstance(job.model, TransformerConfig)
    (piece,) = [each for each in layer_pieces(job, job.model, 0) if "kernel" in each.key
                or "eager" in each.key]  # fmt: skip
    assert piece.key.partition("rotary ")[2] == f"{words} 4/2"
    shared = next(iter(outer_pieces(job, job.model, 257, "embedding"))).key
    assert ("documents" in shared) == ("masked" in words)
