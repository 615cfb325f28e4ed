"""Packing of documents: how full rows are and how long it takes, against `datasets`.

    cd benchmarks && python -m data.packing [--documents 200000] [--length 2048]

The others pack as TRL does, with `Dataset.map` over batches of 1,000 documents in Arrow: next-fit,
which gives the tokens new offsets, and best-fit decreasing, which gathers them. Setpoint plans
rows by the lengths of documents, 100,000 at a time. Each is timed until the rows are known, and
until all batches of an epoch are made: inputs, targets, positions and documents, padded. Leaves
with status 1 if Setpoint fills rows worse than the other, or takes longer for either.
"""

from __future__ import annotations

import bisect
import sys
import tempfile
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset, disable_progress_bars

from harness import Report
from setpoint.config import resolve
from setpoint.data.config import Packing
from setpoint.data.corpus import Corpus
from setpoint.data.document import FileRecord
from setpoint.data.order import Sampler
from setpoint.data.packing import Packer, build_packed
from setpoint.data.rows import DocumentRows
from setpoint.memory.host_memory import retain_freed_memory
from setpoint.shapes.batch import IGNORE_INDEX

BATCH = 16  # rows of a batch that is made
VOCABULARY = 32_000


def corpus_of(lengths: np.ndarray[Any, Any]) -> Corpus:
    """Documents of random tokens, with a separator before each and after the last."""
    tokens = np.random.default_rng(1).integers(1, VOCABULARY, int(lengths.sum()) + 1, np.uint16)
    starts = np.append(0, np.cumsum(lengths)[:-1]) + 1
    tokens[starts - 1] = tokens[-1] = 0
    return Corpus(
        side="train",
        tokens=tokens,
        token_bytes=(np.arange(VOCABULARY) > 0).astype(np.int64),
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


def packed_by_datasets(dataset: Dataset, method: str, size: int) -> Dataset:
    """Pack with `Dataset.map`: the tokens of each row, and the lengths of its documents."""

    def pack(batch: pa.Table) -> pa.Table:
        column = batch["input_ids"].combine_chunks()
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        rows = PLAIN[method](lengths.tolist(), size)
        chosen = column.take(pa.array([number for row in rows for number in row]))
        parts = pa.array(np.cumsum([0, *(len(row) for row in rows)]), pa.int32())
        offsets = chosen.offsets.take(parts)
        packed = pa.ListArray.from_arrays(offsets, chosen.values)
        documents = pa.ListArray.from_arrays(parts, chosen.value_lengths())
        return pa.table({"input_ids": packed, "seq_lengths": documents})

    return dataset.with_format("arrow").map(
        pack, batched=True, batch_size=1000, load_from_cache_file=False
    )


def batches_of_datasets(dataset: Dataset, method: str, size: int) -> int:
    """Pack with `Dataset.map`, and make each batch from what it wrote."""
    packed = packed_by_datasets(dataset, method, size)
    return sum(collated(table, size) for table in packed.iter(BATCH))


def collated(table: pa.Table, size: int) -> int:
    """Make the tensors of a batch, as a collator of packed rows does."""
    count = len(table)
    inputs = np.zeros((count, size), np.int64)
    targets = np.full((count, size), IGNORE_INDEX, np.int64)
    positions, documents = (np.full((count, size), -1, np.int64) for _ in range(2))
    tokens, lengths = (table[name].combine_chunks() for name in ("input_ids", "seq_lengths"))
    for row in range(count):
        read = tokens[row].values.to_numpy()
        parts = lengths[row].values.to_numpy()
        used, ends = len(read), np.cumsum(parts)
        inputs[row, :used] = read
        targets[row, : used - 1] = read[1:]
        targets[row, ends - 1] = 0
        positions[row, :used] = np.arange(used) - np.repeat(ends - parts, parts)
        documents[row, :used] = np.repeat(np.arange(len(parts)), parts)
    made = [torch.from_numpy(each) for each in (inputs, targets, positions, documents)]
    return int((made[3] >= 0).sum())


def packed_by_setpoint(corpus: Corpus, method: str, size: int) -> tuple[DocumentRows, Packer]:
    """Plan all rows of an epoch, from nothing."""
    section = resolve(Packing(method=method))
    sequences, cursor = build_packed(corpus, section, length=size, seed=0, bucket=1)
    for group in range(cursor.groups):
        cursor.group(0, group)
    return sequences, cursor


def batches_of_setpoint(corpus: Corpus, method: str, size: int) -> int:
    """Plan all rows of an epoch, and make each batch."""
    sequences, cursor = packed_by_setpoint(corpus, method, size)
    tokens = 0
    sampler = Sampler([cursor])
    while sampler.epoch < 1:
        tokens += sequences.batch_of(sampler.take(BATCH)).tokens
    return tokens


def main() -> int:
    report = Report("data.packing", __doc__, documents=200000, length=2048, rounds=3)
    size = report.options.length
    drawn = np.random.default_rng(0).lognormal(5.5, 1.0, report.options.documents)
    lengths = np.minimum(drawn.astype(np.int64) + 2, size)
    corpus, total = corpus_of(lengths), int(lengths.sum())
    disable_progress_bars()
    ratios: list[float] = []
    with tempfile.TemporaryDirectory() as folder, retain_freed_memory():  # as training does
        flat = pa.array(corpus.tokens[:-1].astype(np.int32))
        offsets = pa.array(np.append(0, np.cumsum(lengths)), pa.int32())
        made = pa.table({"input_ids": pa.ListArray.from_arrays(offsets, flat)})
        Dataset(made).save_to_disk(folder)
        dataset = Dataset.load_from_disk(folder)
        for method in PLAIN:
            rows = len(packed_by_setpoint(corpus, method, size)[0])
            others = len(packed_by_datasets(dataset, method, size))
            assert batches_of_datasets(dataset, method, size) == total
            assert batches_of_setpoint(corpus, method, size) >= total  # and those of a next epoch
            report.bound(rows <= others, f"{method}: {rows} rows, {others} of datasets")
            pairs = {
                "plan": (packed_by_setpoint, packed_by_datasets),
                "plan and batches": (batches_of_setpoint, batches_of_datasets),
            }
            for what, (ours, theirs) in pairs.items():
                sides = {"setpoint": partial(ours, corpus, method, size),
                         "datasets": partial(theirs, dataset, method, size)}  # fmt: skip
                title = f"{method}, {what}"
                bounds = {"datasets": 1.0}
                wall, _ = report.compare(title, sides, bounds, torch.device("cpu"), 0)["datasets"]
                ratios.append(1 / wall.median)
                seconds = (f"{each:.2f}" for each in report.seconds.values())
                report.rows.append((title, f"{total / size / rows:.2%}",
                                    f"{total / size / others:.2%}", *seconds))  # fmt: skip
    report.results["time to plan and make an epoch of packed batches, over that of `datasets`"] = (
        f"{min(ratios):.2f} to {max(ratios):.2f}; see [packing](data/packing.md#speed)"
    )
    return report.finish(
        ("", "filled", "by datasets", "seconds", "of datasets"),
        f"{len(lengths):,} documents, {total:,} tokens, rows of {size}",
    )


if __name__ == "__main__":
    sys.exit(main())
