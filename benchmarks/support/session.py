"""The loop of `setpoint train`, wired as a run wires it, for measuring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from setpoint.checkpoint.store import CheckpointStore
from setpoint.resilience.signals import StopRequest
from setpoint.track.events import EventLog
from setpoint.track.jsonl import JsonlWriter
from setpoint.track.progress import make_progress
from setpoint.track.run_directory import RunDirectory
from setpoint.train.build.components import Components
from setpoint.train.build.utilization import utilization_of
from setpoint.train.callback import Callback
from setpoint.train.callbacks.build import Surroundings, build_callbacks
from setpoint.train.config import Job
from setpoint.train.evaluation.best_metric import BestMetric
from setpoint.train.step.loop import Loop
from setpoint.train.step.position import Position


@contextmanager
def training_loop(
    job: Job, parts: Components, folder: Path, output: TextIO, more: Sequence[Callback]
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
    with (
        RunDirectory.create(folder) as run,
        StopRequest() as stop,
        ExitStack() as ending,
    ):
        total = job.duration.in_unit("steps")
        progress = make_progress(
            job.tracking.progress, total_steps=None if total is None else int(total), stream=output
        )
        trackers = [tracker.build(run_directory=run) for tracker in job.tracking.trackers]
        events = EventLog(run.events)
        for opened in (events, *(t for t in trackers if isinstance(t, JsonlWriter))):
            ending.callback(opened.close)
        around = Surroundings(
            job=job,
            parts=parts,
            run=run,
            store=CheckpointStore(
                run.checkpoints, keep=job.checkpoint.keep, keep_best=job.checkpoint.keep_best
            ),
            events=events,
            progress=progress,
            trackers=trackers,
            state={},
            best=BestMetric(),
            use=utilization_of(job, parts.model, parts.tokenizer.vocab_size, parts.device),
        )
        callbacks, _ = build_callbacks(around)
        with progress:
            yield Loop(job, parts, [*callbacks, *more], stop, Position())
