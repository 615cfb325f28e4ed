"""The stream of global batches depends on the data, the seed and the global batch alone."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.config import resolve
from setpoint.data.config import Packing
from setpoint.data.corpus import build_corpus
from setpoint.data.document import Document
from setpoint.data.loader import Feed
from setpoint.data.mixture import Mixture, MixtureSampler, Phase, shares_of
from setpoint.data.packing import build_packed
from setpoint.data.rows import Sequences, training_rows
from setpoint.data.sampler import EpochSampler, Order, Sampler
from setpoint.data.store import Corpus
from setpoint.data.tokenizers.tokenizer import ByteTokenizer
from setpoint.shapes.batch import Batch, Count

LENGTH, GLOBAL = 8, 12
# Ranks, sequences of a micro-batch and micro-batches, which multiply to the global batch.
LAYOUTS = [
    (ranks, micro, GLOBAL // ranks // micro)
    for ranks in (1, 2, 3, 4, 6, 12)
    for micro in (1, 2, 3, 4, 6, 12)
    if GLOBAL % (ranks * micro) == 0
]
KINDS = ("windows", "next_fit", "first_fit_decreasing", "none", "buckets", "mixture", "mixed packs")


def count(batch: Batch) -> Count:
    return Count(batch.tokens, batch.target_tokens, float(batch.target_tokens))


@cache
def corpus(number: int) -> Corpus:
    texts = [bytes([65 + number]) * (1 + (7 * k + number) % 19) for k in range(50)]
    documents = [Document(f"s{number}/{k}", text) for k, text in enumerate(texts)]
    return build_corpus(documents, ByteTokenizer(), side="train")


def rows_of(kind: str, number: int) -> tuple[Sequences, Sampler]:
    name = f"s{number}"
    if kind == "windows":
        windows = training_rows(corpus(number), LENGTH)
        return windows, EpochSampler(windows, Order(5, len(windows), name))
    buckets = kind == "buckets"
    method: Any = "none" if buckets else kind
    # Several groups are an epoch, where there are groups.
    size = {} if kind == "none" else {"group_size": 17}
    packing = resolve(Packing(method=method, length_buckets=buckets, **size))
    return build_packed(corpus(number), packing, length=LENGTH, seed=5, bucket=GLOBAL, name=name)


def stream_of(kind: str) -> tuple[Sequences, Sampler]:
    if not kind.startswith("mix"):
        return rows_of(kind, 0)
    kinds = ("windows", "windows") if kind == "mixture" else ("first_fit_decreasing", "next_fit")
    built = [rows_of(each, number) for number, each in enumerate(kinds)]
    mixture = Mixture(("s0", "s1"), [rows for rows, _ in built])
    phases = [Phase(0, shares_of((3, 1), 2.0)), Phase(30, shares_of((1, 5), 2.0))]
    samplers = [sampler for _, sampler in built]
    return mixture, MixtureSampler(("s0", "s1"), samplers, phases, (None, 40), mixture.epoch_rows)


def take(
    kind: str, layout: tuple[int, int, int], steps: int, state: Any, workers: int = 0
) -> tuple[list[list[Any]], dict[str, Any]]:
    """The rows of the next global batches, and where they end, which all ranks agree on."""
    ranks, micro, accumulation = layout
    found: list[list[Any]] = [[None] * GLOBAL for _ in range(steps)]
    states: list[dict[str, Any]] = []
    for rank in range(ranks):
        feed = Feed(
            *stream_of(kind), count, micro_size=micro, accumulation=accumulation, data_rank=rank,
            data_size=ranks, workers=workers,
        )  # fmt: skip
        try:
            if state is not None:
                feed.load_state_dict(json.loads(json.dumps(state)))
            for step in range(steps):
                for number, batch in enumerate(feed.take().batches):
                    first = (number * ranks + rank) * micro
                    tensors = (batch.inputs, batch.targets, batch.documents, batch.source)
                    columns = [each.tolist() for each in tensors if each is not None]
                    found[step][first : first + micro] = zip(*columns, strict=True)
            states.append(feed.state_dict())
        finally:
            feed.close()
    assert all(each == states[0] for each in states)
    return found, states[0]


@cache
def expected(kind: str) -> list[list[Any]]:
    return take(kind, (1, GLOBAL, 1), 12, None)[0]


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(st.tuples(st.sampled_from(LAYOUTS), st.integers(1, 4)), min_size=1, max_size=3))
@settings(max_examples=6, deadline=None)
def test_ranks_and_micro_batches_may_change_on_resume(kind: str, sessions: list[Any]) -> None:
    found: list[list[Any]] = []
    state: Any = None
    for layout, steps in sessions:
        rows, state = take(kind, layout, steps, state)
        found += rows
    assert found == expected(kind)[: len(found)]


@pytest.mark.parametrize("kind", ["windows", "mixed packs"])
def test_workers_may_change_with_them(kind: str) -> None:
    found: list[list[Any]] = []
    state: Any = None
    for layout, workers in (((2, 3, 2), 1), ((1, 4, 3), 0), ((1, 2, 6), 2)):
        rows, state = take(kind, layout, 3, state, workers)
        found += rows
    assert found == expected(kind)[:9]
