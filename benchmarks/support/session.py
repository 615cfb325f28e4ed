"""The loop of `setpoint train`, wired as a run wires it, for measuring."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from setpoint.resilience.signals import StopRequest
from setpoint.track.progress import make_progress
from setpoint.train.build.components import Components
from setpoint.train.callbacks.build import build_callbacks
from setpoint.train.config import Job
from setpoint.train.loop import Callback, Loop
from setpoint.train.open import compare, open_record
from setpoint.train.resume import resume


@contextmanager
def training_loop(
    job: Job, components: Components, folder: Path, output: TextIO, more: Sequence[Callback]
) -> Iterator[Loop]:
    """A loop with the callbacks of a run and its run directory.

    Arguments:
        job: the resolved configuration.
        components: freshly built.
        folder: a run directory to be made.
        output: where progress is shown.
        more: callbacks that run last.

    Returns:
        the loop, ready to run.
    """
    total = job.duration.in_unit("steps")
    progress = make_progress(
        job.tracking.progress, total_steps=None if total is None else int(total), stream=output
    )
    run = compare(job, folder, ())
    run.world, run.shown, run.components, run.began = (
        components.world,
        progress,
        components,
        time.time(),
    )
    with StopRequest() as stop:
        run.stop = stop
        with open_record(run):
            resume(run)
            with run.progress:
                yield Loop(job, components, [*build_callbacks(run), *more], stop, run.started)
