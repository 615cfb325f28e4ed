"""Cost of the default metrics: the loop of `setpoint train` with and without them, in turns.

    cd benchmarks && python -m train.metrics_cost [--model tiny] [--rounds 40]

Both loops are in one process and write their rows. Leaves with status 1 if steps with the metrics
take more than 1 % longer.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from harness import Report, training_loop
from setpoint.config.composition import compose
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.loop import Loop
from train.sides import FIXED, MODELS

MOST = 1.01
STEPS = 10
SIDES = {
    "with": (),
    "without": ("tracking.metrics.step_time=none", "tracking.metrics.memory=false"),
}


def main(words: list[str] | None = None) -> int:
    report = Report("train.metrics_cost", __doc__, words, model=("tiny", *MODELS), rounds=40)
    chosen = report.options
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
        bounds = {"without": 1 / MOST}
        ((wall, cpu),) = report.compare(chosen.model, steps, bounds, device).values()
    report.rows.append((str(wall), str(cpu)))
    report.results["speed of a step of `tiny` with the default metrics over one without"] = str(cpu)
    return report.finish(("with / without, wall time", "CPU time"))


def block(loop: Loop) -> None:
    """Take the steps of a row."""
    for _ in range(STEPS):
        loop.launch()
        loop.handle_pending()


if __name__ == "__main__":
    sys.exit(main())
