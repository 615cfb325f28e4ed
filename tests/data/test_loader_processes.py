"""Worker processes: what they share, what signals do to them, and that none is left behind."""

import json
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from setpoint.data.loader import Shared

from ..support.forks import Forks, is_running

SECONDS = 60.0

PROGRAM = """
import json, os, signal, sys, time
import numpy as np, torch
from setpoint.data.config import WorkerOptions
from setpoint.data.corpus import Corpus
from setpoint.data.document import FileRecord
from setpoint.data.loader import Feed
from setpoint.data.rows import RowOrder
from setpoint.data.order import Sampler
from setpoint.data.corpus import PieceRow
from setpoint.data.rows import training_rows
from setpoint.shapes.batch import Count

def count(batch):
    return Count(batch.tokens, batch.target_tokens, float(batch.target_tokens))

def feed(folder, workers):
    parts = [np.memmap(f"{folder}/{k}.bin", np.uint16, "r") for k in range(3)]
    row = PieceRow.joined([np.asarray(parts[0])[5:], parts[1], parts[2]])
    size = len(row)
    starts = np.arange(1, size, 100)
    files = (FileRecord("a/b", 1, "x"),)
    corpus = Corpus(side="train", tokens=row, token_bytes=np.ones(65536, np.int64), separator=0,
        byte_count=size, files=files, digest="d", sources=("a", "b"), starts=starts,
        source=np.arange(len(starts)) % 2)
    cut = training_rows(corpus, 64)
    sampler = Sampler([RowOrder(cut, 1)])
    return Feed(cut, sampler, count, micro_size=4, loader=WorkerOptions(workers))

def main(folder, how):
    if how == "threads":
        torch.set_num_threads(2)
        torch.ones(500, 500) @ torch.ones(500, 500)
        torch.ones(1_000_000).sum()  # a pool of threads, which forks do not have
        helped = feed(folder, 2)
        for _ in range(10):
            helped.take()
        helped.close()
        print("ok")
    else:
        os.setsid()
        helped = feed(folder, 2)
        helped.take()
        from multiprocessing import active_children
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print(json.dumps([process.pid for process in active_children()]), flush=True)
        while not os.path.exists(f"{folder}/go on"):
            time.sleep(0.02)
        for _ in range(100):
            helped.take()
        print("went on", flush=True)
        helped.close()
        print("closed", flush=True)

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


class Program:
    """The program above, as a fork."""

    def __init__(self, forks: Forks, folder: Path, how: str) -> None:
        self.output = folder / "output.txt"
        with self.output.open("wb") as file:
            self.fork = forks.start([str(folder / "program.py"), str(folder), how], folder, file)

    @property
    def workers(self) -> list[int]:
        """Its worker processes, which it prints."""
        end = time.monotonic() + SECONDS
        while "]" not in self.output.read_text():
            assert self.fork.running and time.monotonic() < end
            time.sleep(0.02)
        return json.loads(self.output.read_text())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for k in range(3):
        tokens = np.random.default_rng(k).integers(0, 60000, 1_000_000, np.uint16)
        tokens.tofile(tmp_path / f"{k}.bin")
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


@pytest.fixture
def program(data: Path, forks: Forks) -> Iterator[Callable[[str], Program]]:
    started: list[Program] = []

    def start(how: str) -> Program:
        started.append(Program(forks, data, how))
        return started[-1]

    yield start
    for each in started:
        each.fork.signal(signal.SIGKILL)


Start = Callable[[str], Program]


def test_what_another_process_unpickles_maps_the_same_files(data: Path) -> None:
    """As one does that is not a fork."""
    code: dict[str, Any] = {"__name__": "program"}
    exec(PROGRAM, code)
    feed = code["feed"](data, 0)
    text = bytes(ForkingPickler.dumps(Shared(feed.sequences)))
    assert len(text) < 10_000
    shared = pickle.loads(text)
    rows = np.arange(0, len(feed.sequences), 997)
    ours, theirs = (each.batch_of(rows) for each in (feed.sequences, shared.value))
    assert torch.equal(ours.inputs, theirs.inputs) and torch.equal(ours.source, theirs.source)


def test_threads_of_the_main_process_do_not_stop_its_forks(program: Start) -> None:
    started = program("threads")
    assert (started.fork.wait(), started.output.read_text()) == (0, "ok\n")


def test_signals_of_a_whole_group_leave_the_workers(program: Start, data: Path) -> None:
    started = program("go on")
    workers = started.workers
    for number in (signal.SIGTERM, signal.SIGINT):
        os.killpg(started.fork.pid, number)
    (data / "go on").touch()
    assert started.fork.wait() == 0
    assert started.output.read_text().splitlines()[1:] == ["went on", "closed"]
    assert len(workers) == 2 and not any(map(is_running, workers))


def test_workers_end_with_a_main_process_that_is_killed(program: Start) -> None:
    started = program("wait")
    workers = started.workers
    assert all(map(is_running, workers))
    started.fork.signal(signal.SIGKILL)
    started.fork.wait()
    end = time.monotonic() + SECONDS
    while any(map(is_running, workers)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(map(is_running, workers))
