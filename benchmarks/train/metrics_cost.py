"""What the default metrics cost: the same loop with them and without, in turns.

    cd benchmarks && python -m train.metrics_cost [--model tiny] [--rounds 40]

Both loops are in one process and write their rows to a file each. Leaves with status 1 where a
step with the metrics takes more than 1 % longer by CPU time, the median of neighbouring turns. The
last line has what the spans of a step and a row take by themselves, which the machine disturbs
less.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness import clocks_in_turns, options, ratio, record
from setpoint.config.composition import compose
from setpoint.resilience.signals import StopRequest
from setpoint.track.config import Jsonl
from setpoint.track.jsonl import JsonlTracker
from setpoint.track.progress import Progress
from setpoint.track.trackers import Trackers
from setpoint.train.build.components import build_components
from setpoint.train.callbacks.log import LogCallback
from setpoint.train.config import Job
from setpoint.train.loop import Loop
from setpoint.train.position import Position
from setpoint.train.row_metrics import LossMean
from train.work import MODELS

LIMIT = 1.01
STEPS = 10
WITHOUT = ("tracking.metrics.step_time=none", "tracking.metrics.memory=false")


def loop_of(model: str, file: Path, *flags: str) -> Loop:
    """A loop that has begun, and writes rows."""
    fixed = ("evaluation=null", "duration=1000000 steps", "schedule=constant")
    job = compose(Job, "tiny", flags=[*fixed, *MODELS[model], *flags]).resolve()
    directory: Any = SimpleNamespace(metrics=file)
    tracker = JsonlTracker(Jsonl(), run_directory=directory)
    tracker.open(0, {}, print)
    trackers = Trackers()
    trackers.built["jsonl"] = tracker
    components: Any = build_components(job)
    run: Any = SimpleNamespace(
        trackers=trackers,
        progress=Progress(),
        mean=LossMean(),
        utilization=SimpleNamespace(flops_per_token=None, total_peak=None),
    )
    loop = Loop(job, components, [LogCallback(run)], StopRequest(), Position())
    loop.callbacks[0].start(loop)
    return loop


def steps(loop: Loop) -> None:
    """Take as many steps as a row is due after."""
    for _ in range(STEPS):
        result = loop.step()
        for callback in loop.callbacks:
            callback.after_step(loop, result)


def alone(loop: Loop, times: int = 2000) -> tuple[float, float]:
    """Seconds of CPU time of the spans of a step, and of the columns of a row."""
    names = ["data", "communication", "clip", "device", "optimizer step"]
    names += ["forward", "backward"] * loop.job.batch.accumulation
    [log] = loop.callbacks
    assert isinstance(log, LogCallback)
    began = time.process_time()
    for _ in range(times):
        for name in names:
            with loop.times(name):
                pass
    spans = time.process_time() - began
    began = time.process_time()
    for _ in range(times):
        log._times(loop)
    return spans / times, (time.process_time() - began) / times


def waits_alone(loop: Loop, times: int = 20000) -> float:
    """Seconds of CPU time that telling the wait of one collective apart takes."""
    with loop.times("backward"):
        began = time.process_time()
        for _ in range(times):
            with loop.times.waiting():
                pass
        return (time.process_time() - began) / times


def main(given: list[str] | None = None) -> int:
    chosen = options(__doc__, given, model=("tiny", *MODELS), rounds=40)
    with tempfile.TemporaryDirectory() as folder:
        loops = {
            "with": loop_of(chosen.model, Path(folder, "with.jsonl")),
            "without": loop_of(chosen.model, Path(folder, "without.jsonl"), *WITHOUT),
        }
        sides = {name: lambda loop=loop: steps(loop) for name, loop in loops.items()}
        device = loops["with"].components.device
        clocks = clocks_in_turns(sides, chosen.rounds, device)
        found = {name: ratio(clock, "without", "with") for name, clock in clocks._asdict().items()}
        spans, row = alone(loops["with"])
        wait = waits_alone(loops["with"])
    for name, each in found.items():
        print(f"with / without, {name} time: {each}")
    step = statistics.median(clocks.cpu["without"]) / STEPS
    share = (spans + row / STEPS) / step
    print(
        f"{spans * 1e6:.1f} us a step and {row * 1e6:.1f} us a row, of {step * 1e3:.2f} ms a step:"
    )
    print(f"{share:.3%} by themselves; with several ranks {wait * 1e6:.2f} us a collective")
    record(chosen, "train.metrics_cost", {
        "a step of `tiny` with the default metrics over one without, CPU time": str(found["cpu"])
    })  # fmt: skip
    return int(found["cpu"].median > LIMIT and share > LIMIT - 1)


if __name__ == "__main__":
    sys.exit(main())
