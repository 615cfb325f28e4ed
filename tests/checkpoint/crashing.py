"""Run by test_crashes.py: a program that saves checkpoints is killed at random moments.

    crashing.py ROOT KILLS

It forks the processes that are to die, and prints one line of JSON.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from setpoint.checkpoint.folder import list_checkpoints, read_pointer, unfinished
from setpoint.checkpoint.loading import verify_directory
from setpoint.checkpoint.store import CheckpointStore

from .crashed import alone, check, metric_of, save
from .stored import load


def saves(root: Path, writer: int) -> None:
    """Go on from the newest checkpoint, and save one step after the other until the end."""
    store = CheckpointStore(root, keep=2)
    store.prepare()
    newest = check(store.load_newest())
    step = 0 if newest is None else newest[0]
    os.write(writer, step.to_bytes(8, "little"))
    while True:
        step += 1
        save(store, alone, step, "old")
        os.write(writer, step.to_bytes(8, "little"))


def best_until(step: int) -> int:
    return min(range(1, step + 1), key=metric_of)


def at_random(root: Path, kills: int) -> dict[str, int]:
    """Kill the program again and again, and look at what is left.

    There are more kills than asked for where too few of them met a save, which is a matter of the
    machine's load.
    """
    choices = random.Random(7)
    began = time.perf_counter()
    for step in (1, 2, 3):
        save(CheckpointStore(root.with_name("scratch")), alone, step, "old")
    save_time = (time.perf_counter() - began) / 3
    middle, acknowledged = 0, 0
    for done in range(20 * kills):
        if done >= kills and middle >= kills // 8:
            break
        reader, writer = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                saves(root, writer)
            finally:
                os._exit(1)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            # Some saves are let through, so that the store grows however slow the machine is.
            told = b"".join(pipe.read(8) for _ in range(choices.randrange(3)))
            time.sleep(choices.uniform(0.0, 1.5 * save_time))
            os.kill(pid, signal.SIGKILL)
            assert os.WIFSIGNALED(os.waitpid(pid, 0)[1]), "the child failed by itself"
            told += pipe.read()
        acknowledged = int.from_bytes(told[-8:], "little") if told else acknowledged
        middle += bool(unfinished(root))
        store = CheckpointStore(root, keep=2)
        for directory in list_checkpoints(root).values():
            verify_directory(directory)
        if acknowledged:
            # What save() returned from is there, and at most one more.
            after = (acknowledged, acknowledged + 1)
            for found in (store.load_newest(), load(root, "latest")):
                assert check(found) in [(step, "old") for step in after]
            assert check(load(root, "best")) in [(best_until(step), "old") for step in after]
        store.prepare()
        assert not unfinished(root)
        newest = max(store.steps, default=None)
        assert read_pointer(root, "latest") == newest
        if newest is not None:
            assert read_pointer(root, "best") == best_until(newest)
            acknowledged = newest
    store = CheckpointStore(root, keep=2)
    save(store, alone, acknowledged + 1, "old")
    assert len(store.steps) <= 3, "a whole save removes what killed ones left over"
    return {"kills": kills, "middle": middle, "steps": acknowledged}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(at_random(Path(sys.argv[1]), int(sys.argv[2]))))
