"""Opening of a run: refusals by configuration and record, before anything is built."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from setpoint.checkpoint.folder import list_checkpoints
from setpoint.compile.settings import compiling
from setpoint.config import (
    CONFIG,
    NEEDS,
    ConfigError,
    SetpointError,
    fingerprint,
    need_resolved,
    resolve,
    verify,
)
from setpoint.memory.allocator import expandable_segments
from setpoint.memory.heap import keep_freed
from setpoint.parallel.determinism import determinism
from setpoint.parallel.rank import launched
from setpoint.parallel.world import RemoteRankError, World, world_of
from setpoint.precision.autocast import fp32_products
from setpoint.precision.float8 import compiled_as_eager
from setpoint.resilience.signals import StopRequest
from setpoint.track.environment import environment
from setpoint.track.jsonl import read_jsonl
from setpoint.track.progress import Progress, make_progress
from setpoint.track.run_directory import RunDirectory
from setpoint.train.build.companions import fallback_files
from setpoint.train.config import Job
from setpoint.train.contract import (
    check_contract,
    other_division,
    refuse_renaming,
    split_paths,
)
from setpoint.train.run_name import draw_seed, find_run
from setpoint.train.run_status import (
    command_again,
    refuse_stopped,
    stop_message,
    watch_limits,
)
from setpoint.train.session import Run, Stamp

if TYPE_CHECKING:
    from setpoint.train.loop import Callback


def open_run(
    job: Job,
    directory: str | Path | None,
    accept: Sequence[str],
    stop: StopRequest,
    ending: ExitStack,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Compare a job with its record on all ranks, and set the process up for it.

    Nothing is written but what a URL holds of the run and its directory lacks.

    Arguments:
        directory: of the run; None: see `find_run`.
        ending: takes what is closed when the run is left.
        callbacks: those that are there before the run is.

    Raises:
        SetpointError: the configuration and the record contradict each other, or the job cannot be
            trained here.
    """
    world = world_of(job.parallel)
    shown = progress_of(job, world)
    ending.callback(shown.stop)
    found = None
    if directory is None and job.seed is not None:
        found = world.on_main(partial(find_run, job))
    place = directory or found
    for callback in callbacks:
        callback.before_open(job, None if place is None else Path(place), world, shown.note)
    run = _compare_on_all(world, job, directory, accept, found)
    run.world, run.stop, run.shown, run.added_callbacks = world, stop, shown, callbacks
    for callback in callbacks:
        callback.before_build(run, ending)
    ending.enter_context(settings_of(run.job))
    shown.note(device_line(run.job, world.device))
    stop.resumable, stop.grace = True, run.job.resilience.grace_period
    again = command_again(run.job, run.directory)
    stop.outlook = partial(stop_message, run.directory / "checkpoints", again=again)
    stop.watch()
    watch_limits(stop, run.job, run.directory)
    return run


def require_unchanged(run: Run) -> None:
    """Refuse to go on where another process has trained since; call it with the lock.

    Raises:
        SetpointError: the record or the checkpoints are others now.
    """
    if stamp_of(run.directory) != run.stamp:
        raise SetpointError(
            f"another process has changed {run.directory} while the run was being set up; run it "
            f"again to resume from what is there now"
        )


def compare(
    job: Job, directory: str | Path | None, accept: Sequence[str], found: str | None = None
) -> Run:
    """Compare a job with the record of its run directory, the data aside.

    Arguments:
        directory: of the run, where it was given.
        found: the directory of the run, where none was given; None: it is looked for.

    Raises:
        SetpointError: if they contradict each other, or the job cannot be trained here.
    """
    need_resolved(job, "train")
    accept = split_paths(accept)
    if job.seed is None:
        draft = job.evolve()
        draw_seed(draft)
        job = resolve(draft)
    _refuse_ranks(job)
    # What needs nothing was checked at resolve; missing files are found while the data is read.
    problems = verify(job, set(NEEDS) - {"files"}).problems
    if problems:
        raise ConfigError(problems)
    path = Path(directory if directory is not None else found or find_run(job))
    refuse_stopped(job, path)
    files, stamp = RunDirectory.look(path), stamp_of(path)
    fallback = fallback_files(job, path)
    _check_resume(job, path, bool(stamp[1]))
    accepted = None
    if (path / CONFIG).exists() or stamp[1]:
        accepted = check_contract(str(path), job, accept, given=directory is not None)
        others = other_division(str(path), job) if stamp[1] else None
        if others is not None and job.checkpoint.resharding == "refuse":
            raise SetpointError(others)
        if directory is not None:
            refuse_renaming(str(path), accepted)
    elif accept:
        raise SetpointError(
            f"--accept {accept[0]} has no effect: there is no run to resume in {path}, so there is "
            f"no record to differ from. Leave --accept out, or give the directory of the run"
        )
    return Run(job, path, accept, accepted, stamp, fallback, files)


def stamp_of(path: Path) -> Stamp:
    """When the record's configuration was written, and the steps of the checkpoints."""
    try:
        written = (path / CONFIG).stat().st_mtime_ns
    except OSError:
        written = None
    return written, tuple(list_checkpoints(path / "checkpoints"))


def missing_checkpoints(path: Path) -> str | None:
    """Whether a run without checkpoints has trained what is not to be overwritten.

    Returns:
        how far it was; None for a run that never saved anything on its way: it was killed before
        its first checkpoint, and starts again.
    """
    log = path / "events.jsonl"
    rows = read_jsonl(log, damaged=[]) if log.exists() else []
    starts = [number for number, row in enumerate(rows) if row.get("event") == "restart"]
    rows = rows[starts[-1] :] if starts else rows
    saves = [row for row in rows if row.get("event") == "save"]
    ends = [row for row in rows if row.get("event") == "end" and row.get("status") == 0]
    if ends:
        none = "it saved none (checkpoint.last = none, or save = false)"
        kept = "its checkpoints are gone" if saves else none
        return f"finished at step {ends[-1].get('step')}, and {kept}"
    if saves:
        return f"was trained to step {saves[-1].get('step')}, and its checkpoints are gone"
    return None


def _check_resume(job: Job, path: Path, has_checkpoints: bool) -> None:
    """Check what is there against `checkpoint.resume`."""
    resume = job.checkpoint.resume
    if resume == "never" and has_checkpoints:
        raise SetpointError(
            f"checkpoint.resume = never, but {path} holds checkpoints; choose another --name, or "
            f"--checkpoint.resume auto to resume"
        )
    if resume == "must" and not has_checkpoints:
        raise SetpointError(f"checkpoint.resume = must, but {path} holds no checkpoint")
    gone = None if has_checkpoints or resume == "restart" else missing_checkpoints(path)
    if gone is not None:
        raise SetpointError(
            f"{path} {gone}, so that there is nothing to resume from. --checkpoint.resume restart "
            f"trains it again from step 0 and keeps its metrics beside; another --name makes a run "
            f"of its own"
        )


def _refuse_ranks(job: Job) -> None:
    ranks, started = job.parallel.world_size, launched()
    if ranks == started:
        return
    here = f"a launcher has started {started}" if started > 1 else "one process was started"
    raise SetpointError(
        f"parallel.world_size = {ranks}, and {here}.\nValid: `setpoint train ... --nproc {ranks}`, "
        f"or `torchrun --nproc-per-node {ranks} -m setpoint train ...`; `setpoint check "
        f"--world-size {ranks}` verifies the plan"
    )


SAME_ON_ALL_RANKS = ("code", "python", "packages")
"""What of their environments ranks must have in common."""


def _compare_on_all(
    world: World,
    job: Job,
    directory: str | Path | None,
    accept: Sequence[str],
    found: str | None = None,
) -> Run:
    """Compare a job with the record on every rank, and go on on all of them or on none.

    Arguments:
        directory, found: see `compare`.

    Raises:
        SetpointError: what `compare` raises on any rank, or the ranks do not run the same job with
            the same code.
    """
    if world.size == 1:
        return compare(job, directory, accept, found)
    run: Run | None = None
    refused: SetpointError | None = None
    try:
        run = compare(job, directory, accept, found)
    except SetpointError as error:
        refused = error
    here = environment()
    facts = {name: here.get(name) for name in SAME_ON_ALL_RANKS}
    if run is not None:
        facts["fingerprint"] = fingerprint(run.job)
        facts["run directory"] = str(run.directory.resolve())
    answers = world.all_of((None if refused is None else str(refused), facts))
    for rank, (text, _) in enumerate(answers):
        if text is not None:
            if refused is not None and rank == world.rank:
                raise refused
            raise RemoteRankError(f"rank {rank}: {text}")
    for rank, (_, others) in enumerate(answers):
        for name, value in answers[0][1].items():
            if others[name] != value:
                raise SetpointError(
                    f"the ranks differ: {name} is {value!r} on rank 0 and {others[name]!r} on "
                    f"rank {rank}.\nValid: the same configuration and code on all ranks"
                )
    assert run is not None
    return run


def progress_of(job: Job, world: World) -> Progress:
    """Choose how a run is shown, which the main rank does alone."""
    mode = job.tracking.progress if world.is_main else "none"
    return make_progress(mode, total_steps=total_steps(job))


def total_steps(job: Job) -> int | None:
    """After how many steps a run ends; None if something else ends it."""
    steps = job.duration.in_unit("steps")
    return None if steps is None else int(steps)


@contextmanager
def settings_of(job: Job) -> Iterator[None]:
    """Set what a job is built and trained under.

    Returns:
        a context, after which all is as it was before, however it was left.

    Raises:
        SetpointError: the folder for compiled code cannot be made or written to.
        RunError: in place of what PyTorch raises at an operation that has no deterministic form.
    """
    heap = keep_freed(job.memory.keep_freed)
    segments = expandable_segments(job.memory.expandable_segments)
    products = fp32_products(bool(job.precision.tf32))
    rounding = compiled_as_eager(job.precision.float8, job.compile is not None)
    parallel = job.parallel
    compiler = compiling(job.compile, parallel.splits_backward, parallel.async_tensor_parallel)
    with heap, segments, determinism(job.deterministic), products, rounding, compiler:
        yield


def device_line(job: Job, device: torch.device) -> str:
    """What a run is about to run on, and how.

    Returns:
        for instance `device: cuda:0 (NVIDIA H100 80GB HBM3), 8 ranks: shard 8 (FSDP2), fp32
        computed in bf16`.
    """
    name = str(device)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        name = f"cuda:{index} ({torch.cuda.get_device_name(index)})"
    stored, compute = job.precision.params, job.precision.compute
    formats = stored if stored == compute else f"{stored} computed in {compute}"
    topology = job.parallel.topology
    machine = os.environ.get("LOCAL_WORLD_SIZE", "")
    if machine.isdecimal() and 0 < int(machine) < job.parallel.world_size:
        count = -(-job.parallel.world_size // int(machine))
        topology = topology.replace("ranks", f"ranks on {count} machines", 1)
    return f"device: {name}, {topology}, {formats}"
