"""Saving and loading beside what a disk and others do: `python -m checkpoint.throughput`.

Sides, in turns: a checkpoint of Setpoint (safetensors, BLAKE3 of every byte, flushed); the library
`safetensors` and a flush; `dd` with `conv=fsync`; and `torch.distributed.checkpoint` by hand with
flushed files. Loads begin with nothing of the files in memory, and end with the tensors in those of
a model; the `dd` of a load reads into nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch.distributed import checkpoint as dcp

from checkpoint.states import arguments_of, bytes_of, forget, joined, put_into, states_of
from harness import ratio, record
from setpoint.checkpoint.loading import load_directory
from setpoint.checkpoint.places import checkpoint_to_load
from setpoint.checkpoint.store import CheckpointStore

BOUNDS = {"safetensors": 0.8, "dd": 0.8, "dcp": 1.0}
"""Of the speed of each other side, what Setpoint's is at least."""


class Sides:
    """What all sides save, where, and how.

    Arguments:
        folder: empty.
    """

    def __init__(self, megabytes: int, folder: Path) -> None:
        self.states, self.folder = states_of(megabytes), folder
        self.flat = joined(self.states)
        self.store = CheckpointStore(folder / "setpoint", keep=1)
        self.step = 0
        for name in ("safetensors", "dcp", "dd"):
            (folder / name).mkdir()
        self.raw = folder / "raw"
        # In memory, so that dd reads nothing from the disk.
        self.source = Path("/dev/shm") / f"raw-{os.getpid()}"
        self.source.write_bytes(b"".join(each.numpy().data for each in self.flat.values()))

    def close(self) -> None:
        self.source.unlink()
        shutil.rmtree(self.folder)

    def save_setpoint(self) -> None:
        self.step += 1
        self.store.save(self.step, self.states, {})

    def save_safetensors(self) -> None:
        path = self.folder / "safetensors" / "file"
        path.unlink(missing_ok=True)
        save_file(self.flat, path)
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    def save_dd(self) -> None:
        path = self.folder / "dd" / "file"
        path.unlink(missing_ok=True)
        _dd(f"if={self.source}", f"of={path}", "conv=fsync")

    def save_dcp(self) -> None:
        shutil.rmtree(self.folder / "dcp")
        writer = dcp.FileSystemWriter(self.folder / "dcp", sync_files=True)
        dcp.save(dict(self.flat), storage_writer=writer, no_dist=True)

    def load_setpoint(self) -> None:
        put_into(self.states, load_directory(checkpoint_to_load(str(self.store.root))))

    def load_safetensors(self) -> None:
        for name, source in load_file(self.folder / "safetensors" / "file").items():
            self.flat[name].copy_(source)

    def load_dd(self) -> None:
        _dd(f"if={self.folder / 'dd' / 'file'}", "of=/dev/null")

    def load_dcp(self) -> None:
        dcp.load(dict(self.flat), checkpoint_id=self.folder / "dcp", no_dist=True)


def _dd(*words: str) -> None:
    subprocess.run(["dd", "bs=4M", *words], check=True, capture_output=True)


def compare(what: str, sides: Sides, rounds: int) -> tuple[bool, str]:
    """Measure all sides in turns, and print their speeds: whether a bound is missed, the ratios."""
    names = ["setpoint", *BOUNDS]
    times: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(-1, rounds):
        for name in names if round_ % 2 else reversed(names):
            forget(sides.folder)
            began = time.perf_counter()
            getattr(sides, f"{what}_{name}")()
            if round_ >= 0:
                times[name].append(time.perf_counter() - began)
    size, missed, ratios = bytes_of(sides.states), False, list[str]()
    speeds = ", ".join(f"{name} {size / min(each) / 1e6:.0f} MB/s" for name, each in times.items())
    print(f"{what} of {size / 1e6:.0f} MB, best: {speeds}")
    for name, bound in BOUNDS.items():
        found = ratio(times, "setpoint", name)
        missed |= found.median < bound
        ratios.append(f"{name} {found.median:.2f}")
        print(f"  beside {name}: {found}, bound {bound}", flush=True)
    return missed, ", ".join(ratios)


def main(given: list[str] | None = None) -> int:
    """Measure all sizes."""
    warnings.filterwarnings("ignore", module="torch")
    arguments = arguments_of(__doc__, given)
    missed = False
    for megabytes in arguments.megabytes:
        sides = Sides(megabytes, Path(tempfile.mkdtemp(dir=arguments.folder)))
        try:
            results = {what: compare(what, sides, arguments.rounds) for what in ("save", "load")}
        finally:
            sides.close()
        missed |= any(behind for behind, _ in results.values())
    record(arguments, "checkpoint.throughput", {
        "speed of a save of the last size against the others; bounds 0.8, 0.8, 1":
            results["save"][1],
        "speed of a load of it; the same bounds": results["load"][1],
    })  # fmt: skip
    print("bounds missed" if missed else "bounds kept")
    return int(missed and not arguments.free)


if __name__ == "__main__":
    sys.exit(main())
