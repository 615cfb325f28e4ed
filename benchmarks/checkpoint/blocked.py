"""How long training waits for a save, in the background or not: `python -m checkpoint.blocked`.

Both sides save the same tensors into stores of their own, in turns. Before the next save the
background has ended, as where saves are further apart than they take. The first save, which
allocates the host memory of the copies, is printed apart.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from setpoint.train import prepare_threads

prepare_threads()  # before torch is imported

import torch  # noqa: E402

from checkpoint.states import arguments_of, states_of  # noqa: E402
from setpoint.checkpoint.store import CheckpointStore  # noqa: E402
from setpoint.parallel.world import World  # noqa: E402
from setpoint.train.record.background import BackgroundStore  # noqa: E402
from setpoint.train.record.ranks import SharedStore  # noqa: E402

BOUND = 0.1
"""Of the time that a save takes, in which training waits for one in the background."""


def main(given: list[str] | None = None) -> int:
    """Measure all sizes."""
    arguments = arguments_of(__doc__, given)
    missed = False
    for megabytes in arguments.megabytes:
        states, world = states_of(megabytes), World(torch.device("cpu"))
        folder = Path(tempfile.mkdtemp(dir=arguments.folder))
        background = BackgroundStore(world, CheckpointStore(folder / "a", keep=1), 1, False, 600)
        sides = {"sync": SharedStore(world, CheckpointStore(folder / "s", keep=1))}
        sides["async"] = background
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        try:
            for step in range(arguments.rounds + 1):
                for name in sides if step % 2 else reversed(sides):
                    began = time.perf_counter()
                    sides[name].save(step, states, {"step": step})
                    seconds[name].append(time.perf_counter() - began)
                    sides[name].wait()
        finally:
            background.close()
            shutil.rmtree(folder)
        first = seconds["async"][0]
        sync, waits = (statistics.median(seconds[name][1:]) for name in ("sync", "async"))
        missed |= waits > BOUND * sync
        print(
            f"{megabytes} MB: {waits:.3f} s in the background ({first:.3f} s the first time), "
            f"{sync:.3f} s else: {waits / sync:.1%}",
            flush=True,
        )
    print(f"bound: {BOUND:.0%}: {'missed' if missed else 'kept'}")
    return int(missed and not arguments.free)


if __name__ == "__main__":
    sys.exit(main())
