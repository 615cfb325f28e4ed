"""Cost of the default metrics: the loop of `setpoint train` with and without them, in turns.

    cd benchmarks && python -m train.metrics_cost [--model tiny] [--rounds 40]

Both loops are in one process and write their rows. Leaves with status 1 if steps with the metrics
take more than 1 % longer by CPU time, the median of neighbouring turns.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from harness import clocks_in_turns, options, ratio, record, training_loop, verdict
from setpoint.config.composition import compose
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.loop import Loop
from train.work import FIXED, MODELS

BOUND = 1.01
STEPS = 10
SIDES = {
    "with": (),
    "without": ("tracking.metrics.step_time=none", "tracking.metrics.memory=false"),
}


def main(given: list[str] | None = None) -> int:
    chosen = options(__doc__, given, model=("tiny", *MODELS), rounds=40)
    updates = STEPS * (chosen.rounds + 2)
    flags = (*FIXED, *MODELS[chosen.model], "schedule=constant", f"duration={updates} steps")
    with ExitStack() as stack:
        nowhere = stack.enter_context(open(os.devnull, "w"))
        loops: dict[str, Loop] = {}
        for name, more in SIDES.items():
            job = compose(Job, "tiny", flags=[*flags, *more]).resolve()
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()), "run")
            components = build_components(job)
            loop = stack.enter_context(training_loop(job, components, folder, nowhere, []))
            for callback in loop.callbacks:
                callback.start(loop)
            loops[name] = loop
        steps = {name: lambda loop=loop: block(loop) for name, loop in loops.items()}
        device = loops["with"].components.device
        clocks = clocks_in_turns(steps, chosen.rounds, device)
    found = {name: ratio(clock, "without", "with") for name, clock in clocks._asdict().items()}
    for name, each in found.items():
        print(f"with / without, {name} time: {each}")
    record(chosen, "train.metrics_cost", {
        "a step of `tiny` with the default metrics over one without, CPU time": str(found["cpu"])
    })  # fmt: skip
    return verdict(
        [f"{found['cpu']} above {BOUND}"] * (found["cpu"].median > BOUND), f"at most {BOUND}"
    )


def block(loop: Loop) -> None:
    """Take the steps of a row."""
    for _ in range(STEPS):
        loop.launch()
        loop.handle_pending()


if __name__ == "__main__":
    sys.exit(main())
