"""How long training waits for a save, in the background or not: `python -m checkpoint.blocked`.

Both sides save the same tensors into stores of their own, in turns, and take a step after it: the
forward and backward pass of the weights, the wait for the copies, and an update. What counts is the
wait in the save and before the update; how much longer the passes take beside the copies and the
write, as they share cores and memory, is printed beside it. Before the next save the background has
ended, as where saves are further apart than they take. The first save, which allocates the host
memory of the copies, is printed apart.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from checkpoint.states import WIDTH, arguments_of, joined, states_of
from harness import record
from setpoint.checkpoint.store import CheckpointStore
from setpoint.parallel.world import World

BOUND = 0.1
"""Of the time that a save takes, in which training waits for one in the background."""
TOKENS = 512
"""Of a step."""


def passes(weights: Sequence[Tensor]) -> None:
    """Forward and backward through matrices one after the other, of which each is (N, WIDTH)."""
    x = torch.ones(TOKENS, WIDTH)
    for weight in weights:
        y = x @ weight.T
        x = x + y @ weight / weight.numel()
    x.square().mean().backward()


def main(given: list[str] | None = None) -> int:
    """Measure all sizes."""
    arguments = arguments_of(__doc__, given)
    missed = False
    shares: list[str] = []
    for megabytes in arguments.megabytes:
        states, world = states_of(megabytes), World(torch.device("cpu"))
        folder = Path(tempfile.mkdtemp(dir=arguments.folder))
        background = CheckpointStore(folder / "a", keep=1, world=world, in_flight=1, timeout=600)
        sides = {"sync": CheckpointStore(folder / "s", keep=1, world=world)}
        sides["async"] = background
        held = list(joined(states).values())
        weights = [each.requires_grad_() for each in states["model"].values()]
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        beside: dict[str, list[float]] = {name: [] for name in sides}
        try:
            for step in range(arguments.rounds + 1):
                for name in sides if step % 2 else reversed(sides):
                    began = time.perf_counter()
                    sides[name].save(step, states, {"step": step}, unchanged=held)
                    saved = time.perf_counter()
                    passes(weights)
                    passed = time.perf_counter()
                    sides[name].finish_copies()
                    seconds[name].append(saved - began + time.perf_counter() - passed)
                    beside[name].append(passed - saved)
                    with torch.no_grad():
                        for each in held:
                            each.add_(1e-6)
                    for each in weights:
                        each.grad = None
                    sides[name].wait()
        finally:
            background.close()
            shutil.rmtree(folder)
        first = seconds["async"][0]
        sync, waits = (statistics.median(seconds[name][1:]) for name in ("sync", "async"))
        alone, longer = (statistics.median(beside[name][1:]) for name in ("sync", "async"))
        missed |= waits > BOUND * sync
        shares.append(f"{megabytes} MB {waits / sync:.1%}")
        print(
            f"{megabytes} MB: {waits:.3f} s in the background ({first:.3f} s the first time), "
            f"{sync:.3f} s else: {waits / sync:.1%}; passes take {longer:.3f} s beside the write, "
            f"{alone:.3f} s else",
            flush=True,
        )
    print(f"bound: {BOUND:.0%}: {'missed' if missed else 'kept'}")
    record(arguments, "checkpoint.blocked", {
        "time that training waits for an asynchronous save, over a synchronous one; bound 10 %":
            ", ".join(shares)
    })  # fmt: skip
    return int(missed and not arguments.free)


if __name__ == "__main__":
    sys.exit(main())
