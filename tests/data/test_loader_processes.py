"""Worker processes: what they share, what signals do to them, and that none is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SECONDS = 60.0

PROGRAM = """
import json, os, signal, sys, time
import numpy as np, torch
from setpoint.data.corpus import Corpus
from setpoint.data.document import FileRecord
from setpoint.data.feed import Feed
from setpoint.data.sampler import ShuffledSampler
from multiprocessing.reduction import ForkingPickler
from setpoint.data.sharing import Shared
from setpoint.data.token_row import JoinedRow
from setpoint.data.windows import training_windows
from setpoint.shapes.batch import Count

def count(batch):
    return Count(batch.tokens, batch.target_tokens, float(batch.target_tokens))

def feed(folder, workers):
    parts = [np.memmap(f"{folder}/{k}.bin", np.uint16, "r") for k in range(3)]
    row = JoinedRow([np.asarray(parts[0])[5:], parts[1], parts[2]])
    size = len(row)
    starts = np.arange(1, size, 100)
    files = (FileRecord("a/b", 1, "x"),)
    corpus = Corpus(side="train", tokens=row, token_bytes=np.ones(65536, np.int64), separator=0,
        byte_count=size, files=files, digest="d", sources=("a", "b"), starts=starts,
        source=np.arange(len(starts)) % 2)
    cut = training_windows(corpus, 64)
    return Feed(cut, ShuffledSampler(cut, 1), count, micro_size=4, workers=workers)

def main(folder, how):
    if how in ("spawn", "forkserver"):
        torch.multiprocessing.set_start_method(how)
        alone, helped = feed(folder, 0), feed(folder, 1)  # a worker imports torch anew
        for _ in range(20):
            (a,), (b,) = alone.take().batches, helped.take().batches
            assert torch.equal(a.inputs, b.inputs) and torch.equal(a.source, b.source)
        helped.close()
        print(len(ForkingPickler.dumps(Shared(alone.sequences))))
    elif how == "threads":
        torch.set_num_threads(2)
        torch.ones(500, 500) @ torch.ones(500, 500)
        torch.ones(1_000_000).sum()  # a pool of threads, which forks do not have
        helped = feed(folder, 2)
        for _ in range(50):
            helped.take()
        helped.close()
        print("ok")
    else:
        helped = feed(folder, 2)
        helped.take()
        from multiprocessing import active_children
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print(json.dumps([process.pid for process in active_children()]), flush=True)
        if how == "wait":
            time.sleep(600)
        sys.stdin.readline()
        for _ in range(100):
            helped.take()
        print("went on", flush=True)
        helped.close()
        print("closed", flush=True)

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.fixture
def program(tmp_path: Path) -> Any:
    import numpy as np

    for k in range(3):
        tokens = np.random.default_rng(k).integers(0, 60000, 1_000_000, np.uint16)
        tokens.tofile(tmp_path / f"{k}.bin")
    (tmp_path / "program.py").write_text(PROGRAM)
    started: list[subprocess.Popen[str]] = []

    def start(how: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "program.py", str(tmp_path), how],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("how", ["spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_processes_that_are_no_forks_map_the_same_files(program: Any, how: str) -> None:
    output, errors = program(how).communicate(timeout=300)
    assert not errors
    assert int(output) < 10_000  # of 6 MB in files and 1 MB in memory


def test_threads_of_the_main_process_do_not_stop_its_forks(program: Any) -> None:
    output, errors = program("threads").communicate(timeout=SECONDS)
    assert (output, errors) == ("ok\n", "")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_signals_of_a_whole_group_leave_the_workers(program: Any) -> None:
    process = program("go on")
    workers = json.loads(process.stdout.readline())
    for number in (signal.SIGTERM, signal.SIGINT):
        os.killpg(process.pid, number)
    output, errors = process.communicate("\n", timeout=SECONDS)
    assert (output, errors) == ("went on\nclosed\n", "")
    assert len(workers) == 2 and not any(map(alive, workers))


def test_workers_end_with_a_main_process_that_is_killed(program: Any) -> None:
    process = program("wait")
    workers = json.loads(process.stdout.readline())
    assert all(map(alive, workers))
    process.kill()
    process.wait()
    end = time.monotonic() + SECONDS
    while any(map(alive, workers)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(map(alive, workers))
