"""The stream of global batches depends on the data, the seed and the global batch alone."""

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.config import resolve
from setpoint.data.config import Data, Packing, WorkerOptions
from setpoint.data.corpus import Corpus, build_corpus
from setpoint.data.document import Document
from setpoint.data.lanes import build_streamed
from setpoint.data.loader import Feed
from setpoint.data.order import Cursor, MixtureSchedule, Sampler, Shares, merged_state, shares_of
from setpoint.data.packing import build_packed
from setpoint.data.rows import MixedSequences, RowOrder, Sequences, training_rows
from setpoint.data.sides import open_streams
from setpoint.data.sources.config import Text
from setpoint.data.tokenizer import ByteTokenizer
from setpoint.shapes.batch import Batch, Count

from ..support.snapshots import refused

LENGTH, GLOBAL = 8, 12
KINDS = ("windows", "none", "buckets", "mixed packs")


def count(batch: Batch) -> Count:
    return Count(batch.tokens, batch.target_tokens, float(batch.target_tokens))


@cache
def corpus(number: int) -> Corpus:
    texts = [bytes([65 + number]) * (1 + (7 * k + number) % 19) for k in range(50)]
    documents = [Document(f"s{number}/{k}", text) for k, text in enumerate(texts)]
    return build_corpus(documents, ByteTokenizer(), side="train")


def rows_of(kind: str, number: int) -> tuple[Sequences, Cursor]:
    name = f"s{number}"
    if kind == "windows":
        windows = training_rows(corpus(number), LENGTH)
        return windows, RowOrder(windows, 5, name)
    buckets = kind == "buckets"
    method: Any = "none" if buckets else kind
    # Several groups are an epoch, where there are groups.
    size = {} if kind == "none" else {"group_size": 17}
    packing = resolve(Packing(method=method, length_buckets=buckets, **size))
    return build_packed(corpus(number), packing, length=LENGTH, seed=5, bucket=GLOBAL, name=name)


def stream_of(kind: str) -> tuple[Sequences, Sampler]:
    if not kind.startswith("mix"):
        rows, cursor = rows_of(kind, 0)
        return rows, Sampler([cursor])
    built = [rows_of("first_fit_decreasing", 0), rows_of("next_fit", 1)]
    mixture = MixedSequences(("s0", "s1"), [rows for rows, _ in built])
    phases = [Shares(0, shares_of((3, 1), 2.0)), Shares(30, shares_of((1, 5), 2.0))]
    schedule = MixtureSchedule(("s0", "s1"), phases, (None, 40), mixture.epoch_rows)
    return mixture, Sampler([cursor for _, cursor in built], schedule)


STREAMS = ("packed stream", "ordered stream", "mixture with a stream")


def streamed(kind: str, folder: Path, step_rows: int) -> tuple[Sequences, Sampler]:
    """Several files, which are dealt to groups of lanes where rows of a step allow it."""
    for number in range(4):
        rows = (json.dumps({"text": f"{number} {k} " * (1 + k % 5)}) for k in range(9 + number))
        (folder / f"{number}.jsonl").write_text("".join(f"{row}\n" for row in rows))
    source = Text(name="s1", paths=(f"{folder}/*.jsonl",), streaming=True)
    shuffle = kind != "ordered stream"
    data = {"held_out": 0.0, "shuffle": shuffle, "shuffle_buffer": 8 if shuffle else 10_000}
    (stream,) = open_streams(resolve(Data(sources=(source,), **data)), ByteTokenizer())
    packing = resolve(Packing(method="next_fit" if kind == "packed stream" else "concatenate"))
    rows, cursor = build_streamed(stream, packing, length=LENGTH, seed=5)
    if not kind.startswith("mix"):
        return rows, Sampler([cursor], step_rows=step_rows)
    other, its_cursor = rows_of("windows", 0)
    schedule = MixtureSchedule(
        ("s0", "s1"), [Shares(0, (0.25, 0.75)), Shares(17, (0.5, 0.5))], (None,) * 2
    )
    return MixedSequences(("s0", "s1"), [other, rows]), Sampler(
        [its_cursor, cursor], schedule, step_rows
    )


@pytest.mark.parametrize("kind", [*KINDS, *STREAMS])
@given(
    st.lists(st.tuples(*(st.integers(1, most) for most in (3, 3, 2, 3))), min_size=2, max_size=4)
)
@settings(max_examples=6, deadline=None)
def test_a_resume_with_another_global_batch_continues_the_sequence(
    kind: str, sessions: list[tuple[int, int, int, int]]
) -> None:
    """Ranks, rows of a micro-batch, micro-batches and steps of each session; any position."""
    with TemporaryDirectory() as folder:

        def feed(rank: int, ranks: int, micro: int, accumulation: int) -> Feed:
            of_stream = kind in STREAMS
            step_rows = ranks * micro * accumulation
            pair = streamed(kind, Path(folder), step_rows) if of_stream else stream_of(kind)
            return Feed(
                *pair, count, micro_size=micro, accumulation=accumulation, data_rank=rank,
                data_size=ranks,
            )  # fmt: skip

        total = sum(math.prod(session) for session in sessions)
        first = math.prod(sessions[0][:3])  # the lanes of a stream
        whole = feed(0, 1, first, 1)
        expected = [row for _ in range(-(-total // first)) for row in rows_in(whole.take().batches)]
        whole.close()
        found: list[Any] = [None] * total
        state: Any = None
        begin = 0
        for ranks, micro, accumulation, steps in sessions:
            feeds = [feed(rank, ranks, micro, accumulation) for rank in range(ranks)]
            for rank, each in enumerate(feeds):
                if state is not None:
                    each.load_state_dict(json.loads(json.dumps(state)))
                for number in range(steps):
                    for k, batch in enumerate(each.take().batches):
                        at = begin + ((number * accumulation + k) * ranks + rank) * micro
                        found[at : at + micro] = rows_in([batch])
            state = merged_state([each.state_dict() for each in feeds])
            begin += ranks * micro * accumulation * steps
            for each in feeds:
                each.close()
    assert found == expected[:total]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [*KINDS, *STREAMS])
def test_batches_may_grow_from_step_to_step(tmp_path: Path, kind: str, workers: int) -> None:
    def feed(rank: int, ranks: int) -> Feed:
        pair = streamed(kind, tmp_path, GLOBAL) if kind in STREAMS else stream_of(kind)
        return Feed(
            *pair, count, micro_size=1, accumulation=GLOBAL // ranks, data_rank=rank,
            data_size=ranks, loader=WorkerOptions(workers * (ranks > 1)),
        )  # fmt: skip

    whole, feeds = feed(0, 1), [feed(rank, 3) for rank in range(3)]
    expected = [row for _ in range(2) for row in rows_in(whole.take().batches)]
    found: list[Any] = []
    for number in (1, 1, 2, 3, 1):
        taken: list[Sequence[Batch]] = []
        for each in feeds:
            each.accumulation = number
            taken.append(each.take().batches)
        found += [row for turn in zip(*taken, strict=True) for row in rows_in(turn)]
    for each in (whole, *feeds):
        each.close()
    assert found == expected


def rows_in(batches: Sequence[Batch]) -> list[Any]:
    rows: list[Any] = []
    for batch in batches:
        columns = [batch.inputs, batch.targets, batch.documents, batch.source]
        rows += zip(*(each.tolist() for each in columns if each is not None), strict=True)
    return rows


def test_buckets_of_another_global_batch_are_refused() -> None:
    packing = resolve(Packing(method="none", length_buckets=True, group_size=17))
    samplers = [
        Sampler([build_packed(corpus(0), packing, length=LENGTH, seed=5, bucket=size)[1]])
        for size in (4, 6)
    ]
    with refused():
        samplers[1].load_state_dict(samplers[0].state_dict())


@pytest.mark.parametrize("kind", ["windows", "mixed packs"])
def test_workers_may_change_with_them(kind: str) -> None:
    whole = Feed(*stream_of(kind), count, micro_size=GLOBAL)
    expected = [rows_in(whole.take().batches) for _ in range(9)]
    state: Any = None
    for session, (ranks, micro, accumulation, workers) in enumerate(
        ((2, 3, 2, 1), (1, 4, 3, 0), (1, 2, 6, 2))
    ):
        feeds = [
            Feed(*stream_of(kind), count, micro_size=micro, accumulation=accumulation,
                 data_rank=rank, data_size=ranks, loader=WorkerOptions(workers))
            for rank in range(ranks)
        ]  # fmt: skip
        for each in feeds:
            if state is not None:
                each.load_state_dict(json.loads(json.dumps(state)))
        for step in range(3):
            # Ranks take turns, micro-batch by micro-batch.
            turns = zip(*(each.take().batches for each in feeds), strict=True)
            found = [row for turn in turns for row in rows_in(turn)]
            assert found == expected[3 * session + step]
        (state, *others) = [each.state_dict() for each in feeds]
        assert all(each == state for each in others)
        for each in feeds:
            each.close()
