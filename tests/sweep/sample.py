"""Small jobs as points of a sweep, and processes that only pretend to train."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from setpoint.config.composition import compose
from setpoint.config.record.record import fingerprint
from setpoint.sweep.points import ResolvedPoint
from setpoint.sweep.setting import Point, Setting, axis_origin, labels, name_of
from setpoint.sweep.sweep_record import SweepTask
from setpoint.train.config import Job

ROW = '{"kind": "evaluation", "step": 10, "held_out_loss": %s}'


def point_of(folder: Path, *settings: Setting, duration: str = "10 steps") -> ResolvedPoint[Job]:
    """A point of a small job."""
    flags = [f"workspace={folder}", "experiment=sweep", f"duration={duration}"]
    program = {item.key: item.value for item in settings}
    job = compose(Job, flags=flags, program=program).resolve()
    name = name_of(settings, labels(item.path for item in settings))
    return ResolvedPoint(name, settings, job, fingerprint(job))


def task_of(folder: Path, seed: int, duration: str = "10 steps") -> SweepTask:
    """A point that sets the seed."""
    setting = Setting(("seed",), seed, axis_origin("seed"))
    return SweepTask(point_of(folder, setting, duration=duration), folder / "sweep")


def maker(folder: Path) -> Callable[[Point], ResolvedPoint[Job]]:
    """Resolves points of a small job."""
    return lambda point: point_of(folder, *point)


def pretend(code: str) -> Callable[[SweepTask, Sequence[str]], list[str]]:
    """A command that runs Python code, in which RUN, LR and SEED stand for those of the point."""

    def command(task: SweepTask, modules: Sequence[str]) -> list[str]:
        job = task.job
        names = f"RUN={str(task.run)!r}; LR={job.optimizer.lr}; SEED={job.seed}\n"  # pyright: ignore[reportAttributeAccessIssue]
        return [sys.executable, "-S", "-c", f"import os, sys, time, signal\n{names}{code}"]

    return command


FINISH = """
os.makedirs(RUN, exist_ok=True)
with open(RUN + "/metrics.jsonl", "w") as file:
    file.write('{"kind": "evaluation", "step": 10, "held_out_loss": %r}\\n' % abs(LR - 0.01))
"""
"""What a run leaves behind whose loss is its distance from the best rate."""
