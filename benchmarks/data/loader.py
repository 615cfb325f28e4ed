"""Tokens per second and memory of the loader, and both as the data grows.

    cd benchmarks && python -m data.loader [--largest 10GB] [--seconds 2]

Rows are cut out of shards of random tokens that are mapped into memory, shuffled over all of them.
Each measurement is a process of its own. Time is CPU time of the main process, since others may
compute on the same cores; a worker's is not in it. Beside it torch's DataLoader over the same
shards, with its own shuffle. Leaves with status 1 if the loader without workers feeds fewer than 50
million tokens per second, or if start-up or memory grow with the data.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from harness import Report, run_module
from setpoint.data.config import WorkerOptions
from setpoint.data.corpus import Corpus, JoinedRow
from setpoint.data.document import FileRecord
from setpoint.data.loader import Feed
from setpoint.data.rows import RowOrder, training_rows
from setpoint.data.sampler import Sampler
from setpoint.shapes.batch import Batch, Count

SHARD, DOCUMENT, VOCABULARY = 100_000_000, 1000, 50_257
LENGTH, ROWS = 1024, 8
SIDES = ("setpoint", "1 worker", "2 workers", "torch")
SIZES = {"10MB": 10**7, "100MB": 10**8, "1GB": 10**9, "10GB": 10**10}
LEAST, GROWTH = 50e6, {"start": 0.2, "resident": 16.0}

Next = Callable[[], Any]


def write_shards(folder: Path, size: int) -> list[Path]:
    """Write files of random uint16 tokens, `size` bytes in all, and where documents begin."""
    paths: list[Path] = []
    block = np.random.default_rng(0).integers(0, VOCABULARY, SHARD // 2, np.uint16)
    for number, first in enumerate(range(0, size, SHARD)):
        paths.append(folder / f"{number:04d}.bin")
        np.roll(block, number * 1009)[: (size - first) // 2].tofile(paths[-1])
    np.arange(1, size // 2, DOCUMENT, dtype=np.int64).tofile(folder / "starts.idx")
    return paths


def mapped(folder: Path) -> list[npt.NDArray[np.uint16]]:
    """The shards of a folder."""
    return [np.memmap(path, np.uint16, "r") for path in sorted(folder.glob("*.bin"))]


def ours(folder: Path, length: int, rows: int, workers: int) -> Next:
    """Setpoint's feed over the shards."""
    starts = np.asarray(np.memmap(folder / "starts.idx", np.int64, "r"))
    row = JoinedRow(mapped(folder))
    corpus = Corpus(
        side="train",
        tokens=row,
        token_bytes=np.full(VOCABULARY, 4, np.int64),
        separator=0,
        byte_count=len(row) * 4,
        files=(FileRecord("shards", 0, ""),),
        digest="",
        sources=("shards",),
        starts=starts,
        source=np.zeros(1, np.int64),
    )
    windows = training_rows(corpus, length)
    sampler, loader = Sampler([RowOrder(windows, 1)]), WorkerOptions(workers)
    return Feed(windows, sampler, count_of, micro_size=rows, loader=loader).take


def count_of(batch: Batch) -> Count:
    """What counts of a batch, as a plain loss has it."""
    return Count(batch.tokens, batch.target_tokens, float(batch.target_tokens))


class Plain(torch.utils.data.Dataset[Any]):
    """Windows of one row of tokens, as tutorials write them."""

    def __init__(self, folder: Path, length: int) -> None:
        self.parts, self.width = mapped(folder), length + 1
        self.each = [len(part) // self.width for part in self.parts]
        self.ends = np.cumsum(self.each)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        number = int(np.searchsorted(self.ends, index, "right"))
        place = (index - int(self.ends[number]) + self.each[number]) * self.width
        window = self.parts[number][place : place + self.width].astype(np.int64)
        return window[:-1], window[1:]


def torchs(folder: Path, length: int, rows: int) -> Next:
    """Torch's own loader, in the main process."""
    loader: Any = torch.utils.data.DataLoader(Plain(folder, length), batch_size=rows, shuffle=True)

    def endless() -> Iterator[Any]:
        while True:
            yield from loader

    return endless().__next__


def resident() -> float:
    """MiB of this process and its workers that are not pages of files; what they share once."""
    tasks = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    total = 0
    for process in ("self", *" ".join(tasks).split()):
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
        lines = (line.split() for line in text.splitlines())
        total += sum(int(words[1]) for words in lines if words[0] in ("Pss_Anon:", "Pss_Shmem:"))
    return total / 1024


def measure(folder: Path, side: str, length: int, rows: int, seconds: float) -> dict[str, float]:
    """Measure one side in this process."""
    before, began = resident(), time.perf_counter()
    if side == "torch":
        take = torchs(folder, length, rows)
    else:
        take = ours(folder, length, rows, int(side[0]) if side[0].isdigit() else 0)
    take()
    start = time.perf_counter() - began
    for _ in range(300):
        take()
    steps, end, cpu = 0, time.perf_counter() + seconds, time.process_time()
    while time.perf_counter() < end:
        take()
        steps += 1
    spent = time.process_time() - cpu
    return {
        "tokens": steps * length * rows / spent,
        "start": start,
        "resident": resident() - before,
    }


def in_process(folder: Path, side: str, length: int, rows: int, seconds: float) -> dict[str, float]:
    """Measure one side in a fresh process; the better of two."""
    words = [side, str(length), str(rows), str(seconds)]
    runs = [json.loads(run_module("data.loader", "--measure", folder, *words)) for _ in range(2)]
    least = {name: min(run[name] for run in runs) for name in ("start", "resident")}
    return {"tokens": max(run["tokens"] for run in runs), **least}


def main() -> int:
    report = Report("data.loader", __doc__, largest=("1GB", *SIZES), seconds=2.0, measure=[""])
    given = report.options
    if given.measure:
        folder, side, length, rows, seconds = given.measure
        print(json.dumps(measure(Path(folder), side, int(length), int(rows), float(seconds))))
        return 0
    first: dict[str, dict[str, float]] = {}
    for name in list(SIZES)[: list(SIZES).index(given.largest) + 1]:
        with tempfile.TemporaryDirectory() as place:
            write_shards(Path(place), SIZES[name])
            # Others on the smallest data only.
            for side in SIDES[:3] if first else SIDES:
                run = in_process(Path(place), side, LENGTH, ROWS, given.seconds)
                before = first.setdefault(side, run)
                for what, most in GROWTH.items():
                    grown = run[what] - before[what]
                    report.bound(grown <= most, f"{side}, {name}: {what} grows by {grown:.2f}")
                figures = (run["tokens"] / 1e6, run["start"] * 1e3, run["resident"])
                report.rows.append((name, side, *(f"{figure:.1f}" for figure in figures)))
                if side == SIDES[0]:
                    fast = run["tokens"] >= LEAST
                    report.bound(fast, f"{name}: {figures[0]:.1f} million tokens/s, below 50")
    speeds = (f"{side} {run['tokens'] / 1e6:.0f} M" for side, run in first.items())
    report.results["tokens per CPU second, S = 1024, B = 8"] = ", ".join(speeds)
    return report.finish(("data", "side", "M tokens/s", "start ms", "MiB"))


if __name__ == "__main__":
    sys.exit(main())
