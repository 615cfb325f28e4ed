"""The loop of `setpoint train`, wired as a run wires it, for measuring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from setpoint.checkpoint.store import CheckpointStore
from setpoint.resilience.signals import StopRequest
from setpoint.track.events import EventLog
from setpoint.track.jsonl import JsonlWriter
from setpoint.track.progress import make_progress
from setpoint.track.run_directory import RunDirectory
from setpoint.train.build import Parts
from setpoint.train.callback import Callback
from setpoint.train.callbacks.judge import JudgeCallback
from setpoint.train.callbacks.log import LogCallback
from setpoint.train.callbacks.save import SaveCallback
from setpoint.train.config import Job
from setpoint.train.loop import Loop
from setpoint.train.position import Position


@contextmanager
def training_loop(
    job: Job, parts: Parts, folder: Path, output: TextIO, more: Sequence[Callback]
) -> Iterator[Loop]:
    """A loop with the callbacks of a run and its run directory.

    Arguments:
        job: the resolved configuration.
        parts: freshly built.
        folder: a run directory to be made.
        output: where progress is shown.
        more: callbacks that run last.

    Returns:
        the loop, ready to run.
    """
    with RunDirectory.create(folder) as run, StopRequest() as stop:
        total = job.duration.in_unit("steps")
        progress = make_progress(
            job.tracking.progress, total_steps=None if total is None else int(total), stream=output
        )
        trackers = [tracker.build(run_directory=run) for tracker in job.tracking.trackers]
        metrics = next((t for t in trackers if isinstance(t, JsonlWriter)), None)
        events = EventLog(run.events)
        judge = JudgeCallback(trackers, progress)
        store = CheckpointStore(
            run.checkpoints, keep=job.checkpoint.keep, keep_best=job.checkpoint.keep_best
        )
        save = SaveCallback(store, metrics, events, judge, 0)
        callbacks = [LogCallback(trackers, progress), judge, save, *more]
        with progress:
            yield Loop(job, parts, callbacks, stop, Position())
        events.close()
        if metrics is not None:
            metrics.close()
