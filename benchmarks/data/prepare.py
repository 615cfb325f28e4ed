"""Speed of `setpoint data prepare` beside `datasets.map`, and its memory as the data grows.

    python -m data.prepare [--tokenizer FOLDER] [--processes 2] [--rounds 3] [--fast]
    python -m data.prepare --tokenizer bytes --memory 30 300 1000

FOLDER holds tokenizer.json; without one, byte-level BPE is trained first. Both sides
read one file of JSON Lines, twice the standard library's source, with as many processes, and keep
the tokens on the disk. They take turns; ratios are medians over the turns, of wall time and of the
CPU time of all processes, which a busy machine changes less. `--fast` gives `datasets.map` the
tokenizer's quicker call, too. Leaves with status 1 if `datasets.map` is faster by both. `--memory`
takes megabytes, and prints the peak of the main process and of the largest worker.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from harness import options, record
from setpoint.data.config import Data, Prepare
from setpoint.data.sides import prepare_all
from setpoint.data.sources.config import Stdlib, Text
from setpoint.data.tokenizers.bpe import train_bpe
from setpoint.data.tokenizers.config import HuggingFace
from setpoint.data.tokenizers.tokenizer import ByteTokenizer


class Run(NamedTuple):
    """One turn of a side, in seconds."""

    tokens: int
    wall: float
    cpu: float


def write_rows(file: Path, size: int | None = None) -> None:
    """Write the texts twice, or as often as it takes for `size` bytes."""
    folder = Path(sysconfig.get_path("stdlib"))
    found = (path for path in sorted(folder.rglob("*.py")) if "site-packages" not in path.parts)
    texts = [path.read_text(errors="replace") for path in found if "test" not in path.parts]
    data = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    with file.open("wb") as stream:
        for _ in range(2 if size is None else max(1, size // len(data))):
            stream.write(data)


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


def grow(path: str, processes: int, sizes: list[int]) -> None:
    """Prepare more and more, each time in a process of its own, and print the peaks of memory."""
    for size in sizes:
        with tempfile.TemporaryDirectory() as name:
            write_rows(Path(name) / "rows.jsonl", size * 10**6)
            command = [sys.executable, "-m", "data.prepare", "--tokenizer", path, "--folder", name]
            child = subprocess.Popen([*command, "--processes", str(processes)])
            main = worker = 0.0
            while child.poll() is None:
                main = max(main, peak_of(child.pid))
                tasks = Path(f"/proc/{child.pid}/task").glob("*/children")
                workers = [int(pid) for task in tasks for pid in read(task).split()]
                worker = max([worker, *map(peak_of, workers)])
                time.sleep(0.05)
        if child.returncode:
            sys.exit(child.returncode)
        print(f"{size:,} MB: main {main:.0f} MiB, largest worker {worker:.0f} MiB", flush=True)


def peak_of(process: int) -> float:
    """MiB that a process held at most until now; 0 where it has ended, or is not started whole."""
    if "prepare" not in read(Path(f"/proc/{process}/cmdline")):
        return 0.0
    lines = read(Path(f"/proc/{process}/status")).splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def read(path: Path) -> str:
    """The text of a file of a process that may have ended."""
    with suppress(OSError):
        return path.read_text()
    return ""


def main() -> int:
    """Measure speed, or memory."""
    given = options(
        __doc__, tokenizer=None, processes=2, rounds=3, fast=False, memory=[0], folder=None
    )
    if given.folder:
        name, folder = given.tokenizer, Path(given.folder)
        tokenizer: Any = ByteTokenizer() if name == "bytes" else HuggingFace(path=name).build()
        ours(folder / "rows.jsonl", folder / "cache", tokenizer, given.processes)
    elif given.memory:
        grow(given.tokenizer or "bytes", given.processes, given.memory)
    else:
        speeds = compare(given.tokenizer, given.processes, given.rounds, given.fast)
        against = "the faster tokenizer call in `datasets.map`"
        if not given.fast:
            against = "`setpoint data prepare` against `datasets.map`, BPE, two processes"
        record(given, "data.prepare", {against: f"{speeds[1]:.2f} by CPU time"})
        return int(max(speeds) < 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
