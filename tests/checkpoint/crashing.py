"""A program that saves checkpoints and is killed while it does; run by the tests as a process.

It imports torch once and forks the processes that are to die, since twenty imports would cost half
a minute. It prints one line of JSON. Usage:

    python crashing.py random|limit ROOT [KILLS]
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch

from setpoint.checkpoint.folder import list_checkpoints, read_pointer, unfinished
from setpoint.checkpoint.loading import load_directory, verify_directory
from setpoint.checkpoint.places import find_checkpoint
from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import RunError
from setpoint.shapes.placed import in_memory


def metric_of(step: int) -> float:
    return random.Random(step).random()


def content(step: int) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, object]]:
    generator = torch.Generator().manual_seed(step)
    model = {f"w{i}": torch.randn(64, generator=generator) for i in range(4)}
    return {"model": model, "optimizer": {"step": torch.tensor(step)}}, {"step": step}


def save(store: CheckpointStore, step: int) -> None:
    tensors, state = content(step)
    store.save(step, tensors, state, metric_of(step))


def check_content(store: CheckpointStore, which: Literal["latest", "best"] | None) -> int:
    """Compare a checkpoint, or the newest whole one, with what was saved."""
    path = None if which is None else find_checkpoint(store.root / which)
    checkpoint = store.load_newest() if path is None else load_directory(path)
    assert checkpoint is not None
    tensors, state = content(checkpoint.step)
    assert checkpoint.state == state
    assert checkpoint.metric == metric_of(checkpoint.step)
    for name, tensor in tensors["model"].items():
        assert torch.equal(in_memory(checkpoint.tensors["model"][name]), tensor)
    return checkpoint.step


def fork(work: Callable[[], None]) -> int:
    """Run `work` in a child that leaves without any clean-up of the parent's."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


def killed(pid: int) -> bool:
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the child failed by itself"
    return os.WIFSIGNALED(status)


def best_until(step: int) -> int:
    return min(range(1, step + 1), key=metric_of)


def at_random(root: Path, kills: int) -> dict[str, int]:
    """Kill a program that saves again and again, at random moments, and look at what is left.

    There are more kills than asked for where too few of them met a save, which is a matter of the
    machine's load.
    """
    choices = random.Random(7)
    began = time.perf_counter()
    for step in (1, 2, 3):
        save(CheckpointStore(root.with_name("scratch")), step)
    save_time = (time.perf_counter() - began) / 3
    middle = 0
    acknowledged = 0
    for done in range(20 * kills):
        if done >= kills and middle >= kills // 8:
            break
        reader, writer = os.pipe()

        def work(writer: int = writer) -> None:
            store = CheckpointStore(root, keep=2)
            store.prepare()
            checkpoint = store.load_newest()
            step = 0 if checkpoint is None else checkpoint.step
            os.write(writer, step.to_bytes(8, "little"))
            while True:
                step += 1
                save(store, step)
                os.write(writer, step.to_bytes(8, "little"))

        pid = fork(work)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            # Some saves are let through, so that the store grows however slow the machine is.
            told = b"".join(pipe.read(8) for _ in range(choices.randrange(3)))
            time.sleep(choices.uniform(0.0, 1.5 * save_time))
            os.kill(pid, signal.SIGKILL)
            assert killed(pid)
            told += pipe.read()
        acknowledged = int.from_bytes(told[-8:], "little") if told else acknowledged

        middle += bool(unfinished(root))
        store = CheckpointStore(root, keep=2)
        for directory in list_checkpoints(root).values():
            verify_directory(directory)
        if acknowledged:
            # What save() returned from is there, and at most one more.
            assert check_content(store, None) in (acknowledged, acknowledged + 1)
            assert check_content(store, "latest") in (acknowledged, acknowledged + 1)
            allowed = (best_until(acknowledged), best_until(acknowledged + 1))
            assert check_content(store, "best") in allowed
        store.prepare()
        assert not unfinished(root)
        newest = max(store.steps, default=None)
        assert read_pointer(store.root, "latest") == newest
        if newest is not None:
            assert read_pointer(store.root, "best") == best_until(newest)
            acknowledged = newest
    store = CheckpointStore(root, keep=2)
    save(store, acknowledged + 1)
    assert len(store.steps) <= 3, "a whole save removes what killed ones left over"
    return {"kills": kills, "middle": middle, "steps": acknowledged}


def limited(root: Path) -> dict[str, object]:
    """Save under a limit of the file size, which the kernel enforces like a full disk."""
    store = CheckpointStore(root)
    save(store, 1)
    before = sorted(str(path) for path in root.rglob("*"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    message = ""
    try:
        store.save(2, {"model": {"w": torch.zeros(100, 100)}}, {})
    except RunError as error:
        message = str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    intact = sorted(str(path) for path in root.rglob("*")) == before
    step = check_content(store, None)
    save(store, 2)
    return {"message": message, "intact": intact, "step": step, "then": store.steps}


if __name__ == "__main__":
    torch.set_num_threads(1)
    modes: dict[str, Callable[..., object]] = {"random": at_random, "limit": limited}
    print(json.dumps(modes[sys.argv[1]](Path(sys.argv[2]), *map(int, sys.argv[3:]))))
