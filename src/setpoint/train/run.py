"""One execution of a job: what must hold before it, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import CONFIG, NEEDS, ConfigError, SetpointError, resolve, verify
from setpoint.resilience.signals import StopRequest, active
from setpoint.track.run_directory import RunDirectory
from setpoint.train.build.components import build_components, data_line
from setpoint.train.build.process import settings_of
from setpoint.train.config import Job
from setpoint.train.record.contract import (
    check_contract,
    describe_accepted,
    refuse_renaming,
    runs_of_other_lengths,
)
from setpoint.train.record.environment import compare_with_record
from setpoint.train.record.outlook import outlook
from setpoint.train.record.run_name import run_directory_of
from setpoint.train.record.seed import draw_seed
from setpoint.train.record.session import Outcome, Session, check_resume, progress_of
from setpoint.train.record.state import restore
from setpoint.train.step.out_of_memory import explain_oom
from setpoint.train.step.position import Position, is_over


def train(
    job: Job,
    directory: str | Path | None = None,
    accept: Sequence[str] = (),
    stop: StopRequest | None = None,
) -> Outcome:
    """Train a job, or go on with it where its newest whole checkpoint is.

    Arguments:
        directory: the run directory; workspace/experiment/name-fingerprint if None.
        stop: its `request` ends the run after the present step, from any thread; None where
            signals alone do.

    Raises:
        SetpointError: if the configuration and the record contradict each other, the data cannot
            be read, or the directory is in use. Nothing is written then.
        RunError: if the run itself fails.
        KeyboardInterrupt: if a signal arrives before the first step, or Ctrl-C a second time.
    """
    job, path = _held_against_its_place(job, directory, accept)
    # Everything that may be refused is refused before the first byte is written.
    with stop or active() or StopRequest() as stop, settings_of(job), ExitStack() as ending:
        stop.resumable, stop.grace = True, job.resilience.grace_period
        stop.outlook = partial(outlook, path / "checkpoints")
        stop.watch()
        shown = progress_of(job)
        ending.callback(shown.stop)
        fresh = not CheckpointStore(path / "checkpoints").steps
        with explain_oom(job):
            parts = build_components(job, fresh, shown.work)
        with RunDirectory.create(path) as run:
            return Session(job, parts, run, stop, accept, shown).run()


def rehearse(
    job: Job, directory: str | Path | None = None, accept: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """Do what `train` does before its first write, refuse what it refuses, and write nothing.

    The data is read and the model built, and the newest checkpoint of a run is loaded into it.

    Raises:
        SetpointError: as `train` does.
        RunError: if all checkpoints are damaged.
    """
    job, path = _held_against_its_place(job, directory, accept)
    run = RunDirectory.look(path)
    store = CheckpointStore(run.checkpoints)
    with settings_of(job), ExitStack() as ending:
        shown = progress_of(job)
        ending.callback(shown.stop)
        fresh = not store.steps
        with explain_oom(job):
            parts = build_components(job, fresh, shown.work)
        changes: list[str] = []
        if not (run.is_new and fresh):
            changes = describe_accepted(compare_with_record(run, job, parts, accept)[0])
        damaged: list[str] = []
        newest = None
        if not fresh:
            newest = store.load(
                "auto", on_damaged=lambda where, why: damaged.append(f"{where.name}: {why}")
            )
        at = Position() if newest is None else restore(job, parts, newest)
    rows = [("state", _would(job, at, newest is not None)), ("device", str(parts.device))]
    rows.append(("data", data_line(job, parts).removeprefix("data: ")))
    rows += [("duration", str(job.duration))]
    rows += [("changed", line) for line in changes]
    if newest is None and run.is_new:
        rows += [("note", line) for line in runs_of_other_lengths(job, path)]
    return rows + [("damaged", line) for line in damaged]


def _would(job: Job, at: Position, resumes: bool) -> str:
    if resumes and is_over(job.duration, at):
        return f"finished at step {at.step}: nothing would be trained"
    return f"would go on at step {at.step}" if resumes else "would start at step 0"


def _held_against_its_place(
    job: Job, directory: str | Path | None, accept: Sequence[str]
) -> tuple[Job, Path]:
    """Refuse what the configuration and the record alone show; the job with its seed drawn."""
    if job.seed is None:
        draft = job.evolve()
        draw_seed(draft)
        job = resolve(draft)
    _refuse_ranks(job)
    # What needs nothing was checked at resolve; missing files are found while the data is read.
    problems = verify(job, set(NEEDS) - {"files"}).problems
    if problems:
        raise ConfigError(problems)
    path = Path(directory if directory is not None else run_directory_of(job))
    check_resume(job, path)
    if (path / CONFIG).exists():
        accepted = check_contract(str(path), job, accept, given=directory is not None)
        if directory is not None:
            refuse_renaming(str(path), accepted)
    return job, path


def _refuse_ranks(job: Job) -> None:
    ranks = job.parallel.world_size
    if ranks != 1:
        raise SetpointError(
            f"parallel.world_size = {ranks}: this version of Setpoint trains in one process; "
            f"`setpoint check --world-size {ranks}` verifies the plan"
        )
