"""Host memory of saves and loads, and size on disk: `python -m checkpoint.memory`.

Each is done by a process of its own, whose highest memory is compared with that before, in parts of
the bytes of the states.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from checkpoint.states import arguments_of, bytes_of, joined, put_into, size_on_disk, states_of
from harness import forget_peak, memory_line, record
from setpoint.checkpoint.loading import load_directory
from setpoint.checkpoint.places import checkpoint_to_load
from setpoint.checkpoint.store import CheckpointStore

SLACK = 40_000_000
"""Bytes beside the bounds: libraries that are loaded at first use, chunks of files, threads."""
BOUNDS = {"save": 0.0, "save in the background": 1.02, "load": 0.0}
"""Bytes that each takes at most beside the states, in parts of these."""


def in_a_process(act: Callable[[], int]) -> int:
    """Run something in a fork."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(writing, str(act()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as answer:
        found = answer.read()
    if os.waitpid(child, 0)[1]:
        raise SystemExit(1)
    return int(found)


def taken(megabytes: int, what: str, folder: Path) -> int:
    """The memory that a save or a load takes beside the states that are in memory, in bytes."""
    states = states_of(megabytes)
    if what == "load":
        for each in joined(states).values():
            each.zero_()
    before = forget_peak()
    if what == "load":
        put_into(states, load_directory(checkpoint_to_load(str(folder))))
        found = memory_line("VmHWM") - before
        assert all(each.any() for each in joined(states).values())
        return found
    elif what == "save":
        CheckpointStore(folder).save(1, states, {})
    else:
        store = CheckpointStore(folder / "background", in_flight=1, timeout=600)
        for step in (1, 2):
            store.save(step, states, {})
        store.wait()
    return memory_line("VmHWM") - before


def main(given: list[str] | None = None) -> int:
    """Measure all sizes."""
    arguments = arguments_of(__doc__, given)
    torch.set_num_threads(1)
    missed = False
    shares: list[str] = []
    for megabytes in arguments.megabytes:
        size = in_a_process(lambda n=megabytes: bytes_of(states_of(n)))
        folder = Path(tempfile.mkdtemp(dir=arguments.folder))
        try:
            for what, bound in BOUNDS.items():
                found = in_a_process(lambda n=megabytes, w=what, f=folder: taken(n, w, f))
                missed |= found > bound * size + SLACK
                shares.append(f"{megabytes} MB, {what} {found / size:.2f}")
                print(f"{megabytes} MB, {what}: {found / size:.2f} of the states, bound {bound:g}")
            shutil.rmtree(folder / "background")
            disk = size_on_disk(folder)
            missed |= disk > 1.01 * size + 1_000_000
            print(
                f"{megabytes} MB, on disk: {disk / size:.4f} of the states, bound 1.01", flush=True
            )
        finally:
            shutil.rmtree(folder)
    print(f"beside {SLACK / 1e6:.0f} MB; bounds {'missed' if missed else 'kept'}")
    record(arguments, "checkpoint.memory", {
        "host memory beyond the states, as a multiple of them": ", ".join(shares)
    })  # fmt: skip
    return int(missed and not arguments.free)


if __name__ == "__main__":
    sys.exit(main())
