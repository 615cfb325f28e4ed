"""Time of saves and loads, and the time that training waits for a save in the background.

    cd benchmarks && python -m train.checkpoint [--megabytes 50 500] [--rounds 5]

The states are fp32 weights and the moments of Adam. Saves and loads take turns with
`torch.distributed.checkpoint` (DCP), whose files have no digests, and with the library
`safetensors`; all flush their files, and loads begin with none of the files in the page cache and
end with the tensors in those of a model. A step after a save is the forward and backward pass of
the weights, the wait for the copies, and an update; training waits in the save and before the
update. Leaves with status 1 if this wait is above 5 % of a synchronous save, or if a save or load
has less than 0.9 of the speed of DCP.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed import checkpoint as dcp

from harness import Report
from setpoint.checkpoint.loading import load_directory, put_all
from setpoint.checkpoint.places import checkpoint_to_load
from setpoint.checkpoint.store import CheckpointStore
from setpoint.parallel.world import World

WIDTH, LAYERS, TOKENS = 1024, 24, 512
MOST_WAIT, LEAST_SPEED = 0.05, 0.9
States = dict[str, dict[str, Tensor]]


def states_of(megabytes: float) -> States:
    """Weights in fp32 and the two moments of Adam: a third of the bytes each."""
    rows = max(round(megabytes * 1e6 / 3 / LAYERS / WIDTH / 4), 1)
    generator = torch.Generator().manual_seed(0)

    def tensors(prefix: str) -> dict[str, Tensor]:
        names = (f"{prefix}.{layer}" for layer in range(LAYERS))
        return {name: torch.randn(rows, WIDTH, generator=generator) for name in names}

    return {"model": tensors("w"), "optimizer": {**tensors("m"), **tensors("v")}}


def joined(states: States) -> dict[str, Tensor]:
    """All tensors by one name each."""
    return {f"{stem}.{n}": tensor for stem, named in states.items() for n, tensor in named.items()}


def load_into(states: States, root: Path) -> None:
    """Load the newest checkpoint into tensors that are in memory."""
    loaded = load_directory(checkpoint_to_load(str(root))).tensors
    put_all(
        [(into, loaded[s][name]) for s, named in states.items() for name, into in named.items()]
    )


def drop_cached(folder: Path) -> None:
    """Flush the files below a folder and drop them from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            flush(path, drop=True)


def flush(path: Path, drop: bool = False) -> None:
    """Flush a file to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    if drop:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def saves_and_loads(
    states: States, folder: Path
) -> tuple[dict[str, Callable[[], None]], dict[str, Callable[[], object]]]:
    """The saves of all sides, and their loads."""
    flat = joined(states)
    store = CheckpointStore(folder / "setpoint", keep=1)
    file, parts = folder / "file.safetensors", folder / "dcp"

    def save_dcp() -> None:
        shutil.rmtree(parts, ignore_errors=True)
        writer = dcp.FileSystemWriter(parts, sync_files=True)
        dcp.save(dict(flat), storage_writer=writer, no_dist=True)

    def save_safetensors() -> None:
        file.unlink(missing_ok=True)
        save_file(flat, file)
        flush(file)

    steps = iter(range(1, 1 << 30))
    saves: dict[str, Callable[[], None]] = {
        "setpoint": lambda: store.save(next(steps), states, {}),
        "DCP": save_dcp,
        "safetensors": save_safetensors,
    }
    loads: dict[str, Callable[[], object]] = {
        "setpoint": lambda: load_into(states, store.root),
        "DCP": lambda: dcp.load(dict(flat), checkpoint_id=parts, no_dist=True),
        "safetensors": lambda: [flat[name].copy_(t) for name, t in load_file(file).items()],
    }
    return saves, loads


def waits(states: States, folder: Path, rounds: int) -> float:
    """The wait for a save in the background, over that for a synchronous one."""
    world = World(torch.device("cpu"))
    background = CheckpointStore(folder / "a", keep=1, world=world, in_flight=1, timeout=600)
    stores = {"sync": CheckpointStore(folder / "s", keep=1, world=world), "async": background}
    tensors = list(joined(states).values())
    weights = [each.requires_grad_() for each in states["model"].values()]
    seconds: dict[str, list[float]] = {name: [] for name in stores}
    try:
        for step in range(rounds + 1):
            for name in stores if step % 2 else reversed(stores):
                store = stores[name]
                began = time.perf_counter()
                store.save(step, states, {"step": step}, unchanged=tensors)
                saved = time.perf_counter()
                x = torch.ones(TOKENS, WIDTH)
                for weight in weights:
                    x = x + x @ weight.T @ weight / weight.numel()
                x.square().mean().backward()
                passed = time.perf_counter()
                store.finish_copies()
                seconds[name].append(saved - began + time.perf_counter() - passed)
                with torch.no_grad():
                    for tensor in tensors:
                        tensor.add_(1e-6)
                for weight in weights:
                    weight.grad = None
                store.wait()
    finally:
        background.close()
    # The first save in the background allocates the host memory of the copies.
    return statistics.median(seconds["async"][1:]) / statistics.median(seconds["sync"][1:])


def main(words: list[str] | None = None) -> int:
    warnings.filterwarnings("ignore", module="torch")
    report = Report(
        "train.checkpoint",
        __doc__,
        words,
        megabytes=[50, 500],
        rounds=5,
        folder=tempfile.gettempdir(),
    )
    found: dict[str, list[str]] = {"waits": [], "save": [], "load": []}
    for megabytes in report.options.megabytes:
        folder = Path(tempfile.mkdtemp(dir=report.options.folder))
        try:
            states = states_of(megabytes)
            both = saves_and_loads(states, folder)
            for what, sides in zip(("save", "load"), both, strict=True):
                title, before = f"{what} of {megabytes} MB", partial(drop_cached, folder)
                compared = report.compare(title, sides, {}, torch.device("cpu"), 1, before)
                speeds = {name: wall.median for name, (wall, _) in compared.items()}
                report.bound(speeds["DCP"] >= LEAST_SPEED, f"{title}: {speeds['DCP']:.2f} of DCP")
                against = ", ".join(f"{name} {speed:.2f}" for name, speed in speeds.items())
                found[what].append(f"{megabytes} MB: {against}")
            share = waits(states, folder, report.options.rounds)
            report.bound(
                share <= MOST_WAIT, f"{megabytes} MB: training waits {share:.1%} of a save"
            )
            found["waits"].append(f"{megabytes} MB {share:.1%}")
        finally:
            shutil.rmtree(folder)
    report.results |= {
        "time that training waits for an asynchronous save, over a synchronous one; bound 5 %":
            ", ".join(found["waits"]),
        "speed of a save against others, wall time; bound 0.9 for DCP": "; ".join(found["save"]),
        "speed of a load; the same bound": "; ".join(found["load"]),
    }  # fmt: skip
    report.rows = list(report.results.items())
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
