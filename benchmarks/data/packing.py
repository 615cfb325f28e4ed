"""Packing of documents: how full rows are and how long it takes, against `datasets`.

    cd benchmarks && python -m data.packing [--documents 200000] [--length 2048]

The others pack as TRL does, with `Dataset.map` over batches of 1,000 documents in Arrow: next-fit,
which gives the tokens new offsets, and best-fit decreasing, which gathers them. Setpoint plans
rows by the lengths of documents, 100,000 at a time; its second time also makes every batch of an
epoch. All run in this process and on one thread; each in its turn, and the least of 3 times counts.
Leaves with status 1 if Setpoint fills rows worse than the other, or takes longer to plan them.
"""

from __future__ import annotations

import argparse
import bisect
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, disable_progress_bars

from setpoint.cli.style import table
from setpoint.config import resolve
from setpoint.data.config import Packing
from setpoint.data.corpus import Corpus
from setpoint.data.document import FileRecord
from setpoint.data.packed import PackedSampler, PackedSequences, build_packed

ROUNDS = 3
BATCH = 16  # rows of a batch that is made
VOCABULARY = 32_000
SIDES = {"next_fit": "datasets, next-fit", "first_fit_decreasing": "datasets, best-fit decreasing"}
HEADINGS = ("side", "rows", "filled", "seconds", "Setpoint's / it")


def corpus_of(lengths: np.ndarray[Any, Any]) -> Corpus:
    """Documents of random tokens, with a separator before each and after the last."""
    tokens = np.random.default_rng(1).integers(1, VOCABULARY, int(lengths.sum()) + 1, np.uint16)
    starts = np.append(0, np.cumsum(lengths)[:-1]) + 1
    tokens[starts - 1] = tokens[-1] = 0
    return Corpus(
        side="train",
        tokens=tokens,
        token_bytes=np.ones(VOCABULARY, np.int64),
        separator=0,
        byte_count=len(tokens),
        files=tuple(FileRecord(str(n), 0, "") for n in range(len(lengths))),
        digest="",
        sources=("train",),
        starts=starts,
        source=np.zeros(len(lengths), np.int64),
    )


def next_fit(lengths: list[int], size: int) -> list[list[int]]:
    """The documents of each row, in their order."""
    rows: list[list[int]] = []
    room = 0
    for number, length in enumerate(lengths):
        if length > room:
            rows.append([])
            room = size
        rows[-1].append(number)
        room -= length
    return rows


def best_fit_decreasing(lengths: list[int], size: int) -> list[list[int]]:
    """The documents of each row: each goes, the longest first, into the fullest with room."""
    rows: list[list[int]] = []
    rooms: list[tuple[int, int]] = []
    for number in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        length = lengths[number]
        at = bisect.bisect_left(rooms, (length, -1))
        if at == len(rooms):
            room, row = size, len(rows)
            rows.append([])
        else:
            room, row = rooms.pop(at)
        rows[row].append(number)
        bisect.insort(rooms, (room - length, row))
    return rows


PLAIN = {"next_fit": next_fit, "first_fit_decreasing": best_fit_decreasing}


def packed_by_datasets(dataset: Dataset, method: str, size: int) -> tuple[int, int]:
    """Pack with `Dataset.map`.

    Returns:
        how many rows, and how many tokens they hold.
    """

    def pack(batch: pa.Table) -> pa.Table:
        column = batch["input_ids"].combine_chunks()
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        rows = PLAIN[method](lengths.tolist(), size)
        chosen = column.take(pa.array([number for row in rows for number in row]))
        parts = np.cumsum([0, *(len(row) for row in rows)])
        offsets = chosen.offsets.to_numpy()[parts]
        packed = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), chosen.values)
        return pa.table({"input_ids": packed})

    found = dataset.with_format("arrow").map(
        pack, batched=True, batch_size=1000, load_from_cache_file=False
    )
    column = found.data.column("input_ids")
    return len(found), sum(len(chunk.flatten()) for chunk in column.chunks)


def packed_by_setpoint(
    corpus: Corpus, method: str, size: int
) -> tuple[PackedSequences, PackedSampler]:
    """Plan all rows of an epoch, from nothing."""
    section = resolve(Packing(method=method))
    sequences, sampler = build_packed(corpus, section, length=size, seed=0, bucket=1)
    for group in range(sampler.packer.groups):
        sampler.packer.group(0, group)
    return sequences, sampler


def all_batches(corpus: Corpus, method: str, size: int) -> int:
    """Plan all rows of an epoch, and make each batch."""
    sequences, sampler = packed_by_setpoint(corpus, method, size)
    tokens = 0
    while sampler.epoch < 1:
        tokens += sequences.rows(sampler.take(BATCH)).tokens
    return tokens


def least_seconds(run: Callable[[], Any]) -> float:
    """The least time of some calls."""
    times: list[float] = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> int:
    """Measure, and print a table.

    Returns:
        the exit status.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--length", type=int, default=2048)
    given = parser.parse_args()
    size = given.length
    drawn = np.random.default_rng(0).lognormal(5.5, 1.0, given.documents).astype(np.int64) + 2
    lengths = np.minimum(drawn, size)
    corpus = corpus_of(lengths)
    disable_progress_bars()
    rows: list[tuple[str, ...]] = []
    passed = True
    with tempfile.TemporaryDirectory() as folder:
        flat = pa.array(corpus.tokens[:-1].astype(np.int32))
        offsets = pa.array(np.append(0, np.cumsum(lengths)), pa.int32())
        made = pa.table({"input_ids": pa.ListArray.from_arrays(offsets, flat)})
        Dataset(made).save_to_disk(folder)
        dataset = Dataset.load_from_disk(folder)
        for method, other in SIDES.items():
            count, tokens = packed_by_datasets(dataset, method, size)
            assert tokens == lengths.sum()
            theirs = least_seconds(lambda m=method: packed_by_datasets(dataset, m, size))
            sequences, _ = packed_by_setpoint(corpus, method, size)
            plan = least_seconds(lambda m=method: packed_by_setpoint(corpus, m, size))
            whole = least_seconds(lambda m=method: all_batches(corpus, m, size))
            full = float(lengths.sum()) / size
            rows += [
                (f"Setpoint, {method}", str(len(sequences)), f"{full / len(sequences):.2%}",
                 f"{plan:.2f}", ""),
                ("  with all batches", "", "", f"{whole:.2f}", ""),
                (other, str(count), f"{full / count:.2%}", f"{theirs:.2f}",
                 f"{plan / theirs:.2f}, with batches {whole / theirs:.2f}"),
            ]  # fmt: skip
            passed = passed and len(sequences) <= count and plan <= theirs
    print(f"{given.documents:,} documents, {int(lengths.sum()):,} tokens, rows of {size}\n")
    print(table(rows, HEADINGS))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
