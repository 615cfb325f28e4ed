"""Speed of `setpoint data prepare` beside `datasets.map`.

    cd benchmarks && python -m data.prepare [--tokenizer FOLDER] [--processes 2] [--fast]

FOLDER holds tokenizer.json; without one, byte-level BPE is trained first. Both sides
read one file of JSON Lines, twice the standard library's source, with as many processes, and keep
the tokens on the disk. They take turns; ratios are medians over the turns, of wall time and of the
CPU time of all processes, which a busy machine changes less. `--fast` gives `datasets.map` the
tokenizer's quicker call, too. Leaves with status 1 if `datasets.map` is faster by both.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from harness import Report
from setpoint.data.config import Data, Prepare
from setpoint.data.sides import prepare_all
from setpoint.data.sources.config import Stdlib, Text
from setpoint.data.tokenizers.bpe import train_bpe
from setpoint.data.tokenizers.config import HuggingFace


class Run(NamedTuple):
    """One turn of a side, in seconds."""

    tokens: int
    wall: float
    cpu: float


def write_rows(file: Path) -> None:
    """Write the texts twice."""
    folder = Path(sysconfig.get_path("stdlib"))
    found = (path for path in sorted(folder.rglob("*.py")) if "site-packages" not in path.parts)
    texts = [path.read_text(errors="replace") for path in found if "test" not in path.parts]
    data = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    file.write_bytes(2 * data)


def timed(work: Callable[[], Callable[[], int]]) -> Run:
    """Measure this process and those it waits for; what `work` returns counts the tokens then."""
    begin, cpu = time.perf_counter(), spent()
    count = work()
    wall, cpu = time.perf_counter() - begin, spent() - cpu
    return Run(count(), wall, cpu)


def spent() -> float:
    """CPU seconds of this process and of its children that ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in both)


def ours(file: Path, folder: Path, tokenizer: Any, processes: int) -> Callable[[], int]:
    """Prepare the file."""
    cache = Prepare(folder=str(folder), workers=processes)
    data = Data(sources=(Text(paths=(str(file),)),), held_out=0.0, prepare=cache)
    (prepared,) = prepare_all(data, tokenizer)
    return lambda: prepared.tokens


def theirs(
    file: Path, folder: Path, tokenizer: Any, processes: int, fast: bool
) -> Callable[[], int]:
    """The same with `datasets`, as its documentation has it."""
    import datasets

    datasets.disable_progress_bars()
    encoder = tokenizer.tokenizer

    def encode(rows: Any) -> Any:
        batch = encoder.encode_batch_fast if fast else encoder.encode_batch
        return {"ids": [each.ids for each in batch(rows["text"], add_special_tokens=False)]}

    table: Any = datasets.load_dataset(
        "json", data_files=str(file), split="train", cache_dir=str(folder)
    )
    table = table.map(
        encode, batched=True, batch_size=100, num_proc=processes, remove_columns=["text"]
    )
    return lambda: sum(map(len, table["ids"]))


def compare(path: str | None, processes: int, rounds: int, fast: bool) -> tuple[float, float]:
    """Measure both sides in turns: how many times as fast ours is by both clocks."""
    import datasets as datasets  # its import is not part of a turn

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    pairs: list[tuple[Run, Run]] = []
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "rows.jsonl"
        write_rows(file)
        if path is None:
            path = f"{name}/tokenizer"
            trained = train_bpe(Data(sources=(Stdlib(),)), 32_768)
            Path(path).mkdir()
            for part, text in trained.files.items():
                (Path(path) / part).write_text(text)
        tokenizer: Any = HuggingFace(path=path).build()
        for turn in range(rounds):
            own, other = Path(name) / f"ours{turn}", Path(name) / f"theirs{turn}"
            works = [
                partial(ours, file, own, tokenizer, processes),
                partial(theirs, file, other, tokenizer, processes, fast),
            ]
            found = {which: timed(works[which]) for which in ((0, 1) if turn % 2 else (1, 0))}
            pairs.append((found[0], found[1]))
    for title, number in (("prepare", 0), ("datasets.map", 1)):
        runs = [pair[number] for pair in pairs]
        rate = median(run.tokens / run.wall for run in runs)
        print(f"{title:13} {rate:,.0f} tokens/s, {median(run.cpu for run in runs):.1f} CPU seconds")
    wall = median(b.wall / a.wall for a, b in pairs)
    cpu = median(b.cpu / a.cpu for a, b in pairs)
    print(f"prepare is {wall:.2f} times as fast, {cpu:.2f} times by CPU time")
    return wall, cpu


def main() -> int:
    report = Report("data.prepare", __doc__, tokenizer=None, processes=2, rounds=3, fast=False)
    given = report.options
    wall, cpu = compare(given.tokenizer, given.processes, given.rounds, given.fast)
    against = "the faster tokenizer call in `datasets.map`"
    if not given.fast:
        against = "`setpoint data prepare` against `datasets.map`, BPE, two processes"
    report.results[against] = f"{cpu:.2f} by CPU time"
    report.bound(max(wall, cpu) >= 1, f"{wall:.2f} of the speed, {cpu:.2f} by CPU time")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
