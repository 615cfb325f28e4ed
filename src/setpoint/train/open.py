"""Opening of a run: every refusal by configuration or record, then its locked directory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from setpoint.checkpoint.folder import list_checkpoints
from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import (
    CONFIG,
    NEEDS,
    ConfigError,
    RunError,
    SetpointError,
    fingerprint,
    log_of,
    record_files,
    resolve,
    traceback_to_show,
    verify,
)
from setpoint.config.draft.walk import need_config
from setpoint.memory.host_memory import retain_freed_memory
from setpoint.memory.usage import expandable_segments
from setpoint.parallel.determinism import determinism
from setpoint.parallel.hangs import keep_hangs_in
from setpoint.parallel.rank import launched
from setpoint.parallel.world import RemoteRankError, World, world_of
from setpoint.precision.mixed_precision import fp32_products, is_emulated
from setpoint.resilience.limits import refuse_stopped
from setpoint.resilience.signals import StopRequest
from setpoint.track.environment import environment
from setpoint.track.jsonl import EventLog, NoEvents, since_restart
from setpoint.track.progress import LoggedProgress, Progress, make_progress
from setpoint.track.run_directory import RunDirectory
from setpoint.track.trackers import Trackers
from setpoint.train.build.assets import fallback_files
from setpoint.train.config import Job
from setpoint.train.contract import (
    check_contract,
    refuse_renaming,
    refuse_resharding,
    split_paths,
)
from setpoint.train.finish import record_failure
from setpoint.train.row_metrics import utilization_of
from setpoint.train.run_name import draw_seed, find_run, follow_load
from setpoint.train.run_record import compare_with_record
from setpoint.train.run_status import watch_stops
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
    """Compare a job with its record on all ranks, and set up the process for it.

    Nothing is written to the run directory except files fetched from a URL.

    Arguments:
        directory: the run directory; None: see `find_run`.
        ending: closed at the end of the session.
        callbacks: the callbacks that exist before the run.

    Raises:
        SetpointError: the configuration and the record contradict each other, or the job cannot be
            trained on this machine.
    """
    world = world_of(job.parallel)
    shown = progress_of(job, world)
    ending.callback(shown.stop)
    place = place_of(job, directory, world)
    for callback in callbacks:
        callback.before_open(job, place, world, shown.note)
    run = compare_on_all_ranks(world, job, directory, accept, place)
    run.stop, run.shown, run.outer_callbacks = stop, shown, callbacks
    for callback in callbacks:
        callback.before_build(run, ending)
    ending.enter_context(settings_of(run.job))
    shown.note(device_line(run.job, world.device))
    stop.resumable, stop.grace = True, run.job.resilience.grace_period
    watch_stops(stop, run.job, run.directory)
    return run


@contextmanager
def open_directory(run: Run) -> Iterator[None]:
    """Lock the run directory, compare its data, and open the writers.

    An error that ends the session is recorded in this rank's log and in the events.

    Raises:
        SetpointError: the data differs from that of the run, or another process is writing, or has
            written, to the directory. The run is unchanged in these cases.
    """
    job, world, section = run.job, run.world, run.job.checkpoint
    with locked_directory(world, run.directory) as files, ExitStack() as ending:
        world.on_main(lambda: require_unchanged(run))
        run.files, run.environment = files, {}
        if run.accepted is not None:
            run.accepted, run.environment = compare_with_record(
                files, run.accepted, run.components, job, run.accept
            )
        run.events = EventLog(files.events) if world.is_main else NoEvents()
        ending.callback(run.events.close)
        run.progress = LoggedProgress(
            run.shown, files.logs / f"rank-{world.rank}.log", final_step(job)
        )
        ending.callback(run.progress.close)
        run.progress.log(device_line(job, world.device))  # which is now known
        keep_hangs_in(files.logs)
        run.trackers = Trackers()
        ending.callback(run.trackers.close)
        trackers = job.tracking.trackers if world.is_main else ()
        world.on_main(lambda: run.trackers.build(trackers, files))

        def set_aside(before: Path, now: Path) -> None:
            run.progress.note(f"{before.name} was renamed to {now.name}, with all its files")
            run.events.write("set_aside", checkpoint=before.name, to=now.name)

        is_async = section.mode != "sync"
        run.store = CheckpointStore(
            files.checkpoints,
            world,
            in_flight=section.in_flight if is_async else 0,
            pinned=section.mode == "async_pinned",
            timeout=job.parallel.timeout,
            keep=section.keep,
            keep_every=section.keep_every,
            keep_at=section.at,
            keep_best=section.keep_best,
            writes=section.save,
            on_set_aside=set_aside,
        )
        run.record = record_files(job)
        words, count = run.components.tokenizer.vocab_size, run.components.parameter_count
        run.utilization = utilization_of(job, run.components.model, words, world.device, count)
        try:
            yield
        except Exception as error:
            # A recorded run has started, and is not merely refused.
            is_recorded = isinstance(error, RunError) and run.files.config.exists()
            if (
                run.loop
                or is_recorded
                or not isinstance(error, SetpointError)
                or traceback_to_show(error)
            ):
                record_failure(run, error)
            raise


@contextmanager
def locked_directory(world: World, path: Path) -> Iterator[RunDirectory]:
    """The run directory, locked by the main rank, and read-only for the others.

    If no run was recorded, as after a refused first start, the directory is removed afterwards
    unless it contains the stacks of a hanging rank.

    Raises:
        SetpointError: see `RunDirectory.create`; on all ranks.
    """
    created: list[RunDirectory] = []

    def create() -> bool:
        created.append(RunDirectory.create(path))
        return created[0].is_new

    is_new = world.on_main(create)
    with created[0] if created else RunDirectory(path, None, is_new) as directory:
        is_refused = True
        try:
            yield directory
        except BaseException as error:
            # The log of a failure is useful; a refusal is fully described by its message.
            is_refused = isinstance(error, SetpointError | KeyboardInterrupt) and not log_of(error)
            raise
        finally:
            if created and is_new and is_refused and not _is_worth_keeping(directory):
                directory.withdraw()


def _is_worth_keeping(directory: RunDirectory) -> bool:
    """True if a directory contains checkpoints, or stacks of hanging ranks."""
    try:
        stacks = any(os.path.getsize(file) for file in directory.logs.glob("*.stacks"))
        return stacks or bool(list_checkpoints(directory.checkpoints))
    except OSError:  # another rank removes an empty file, or the disk fails
        return True


def place_of(job: Job, directory: str | Path | None, world: World) -> Path | None:
    """Directory of a run, determined by the main rank; None before a seed is drawn."""
    if directory is None and job.seed is not None:
        directory = world.on_main(partial(find_run, job))
    return None if directory is None else Path(directory)


def require_unchanged(run: Run) -> None:
    """Refuse to continue if another process has trained meanwhile; requires the lock.

    Raises:
        SetpointError: the record or the checkpoints have changed.
    """
    if stamp_of(run.directory) != run.stamp:
        raise SetpointError(
            f"another process has changed {run.directory} while the run was being set up; run it "
            f"again to resume from what is there now"
        )


def compare(
    job: Job, directory: str | Path | None, accept: Sequence[str], place: Path | None = None
) -> Run:
    """Compare a job with the record of its run directory, except for the data.

    Arguments:
        directory: the run directory, if given.
        place: the directory returned by `place_of`; None: search for it.

    Raises:
        SetpointError: they contradict each other, or the job cannot be trained on this machine.
    """
    need_config(job, "train", resolved=True)
    accept = split_paths(accept)
    if job.seed is None:
        draft = job.evolve()
        draw_seed(draft)
        job = resolve(draft)
    _refuse_ranks(job)
    path = Path(directory or place or find_run(job))
    job = follow_load(job, path)
    # Checks without needs ran at resolve; missing files are reported when the data is read.
    problems = verify(job, set(NEEDS) - {"files"}).problems
    if problems:
        raise ConfigError(problems)
    refuse_stopped(job.resilience, path)
    stamp = stamp_of(path)
    run = Run(job, path, accept, stamp, fallback_files(job, path), RunDirectory.check(path))
    run.missing_checkpoints = None if run.has_checkpoints else missing_checkpoints(path)
    _check_resume(run)
    if (path / CONFIG).exists() or run.has_checkpoints:
        run.accepted = check_contract(str(path), job, accept, given=directory is not None)
        if run.has_checkpoints and job.checkpoint.resharding == "refuse":
            refuse_resharding(str(path), job)
        if directory is not None:
            refuse_renaming(str(path), run.accepted)
    elif accept:
        raise SetpointError(
            f"--accept {accept[0]} has no effect: there is no run to resume in {path}, so there is "
            f"no record to differ from. Remove --accept, or give the directory of the run"
        )
    return run


def stamp_of(path: Path) -> Stamp:
    """Modification time of the recorded configuration, and the steps of all checkpoints."""
    try:
        written = (path / CONFIG).stat().st_mtime_ns
    except OSError:
        written = None
    return written, tuple(list_checkpoints(path / "checkpoints"))


def missing_checkpoints(path: Path) -> str | None:
    """Describe the training lost by a run without checkpoints, so that it is not overwritten.

    Returns:
        None for a run that was killed before its first checkpoint, which starts over.
    """
    rows = since_restart(path / "events.jsonl")
    saves = [row for row in rows if row.get("event") == "save"]
    ends = [row for row in rows if row.get("event") == "end" and row.get("status") == 0]
    if ends:
        unsaved = "it saved no checkpoint (checkpoint.last = none, or checkpoint.save = false)"
        kept = "its checkpoints no longer exist" if saves else unsaved
        return f"finished at step {ends[-1].get('step')}, and {kept}"
    if saves:
        return f"was trained to step {saves[-1].get('step')}, and its checkpoints no longer exist"
    return None


def _check_resume(run: Run) -> None:
    """Check the state of the run against `checkpoint.resume`."""
    resume, path = run.job.checkpoint.resume, run.directory
    if resume == "never" and run.has_checkpoints:
        raise SetpointError(
            f"checkpoint.resume = never, but {path} has checkpoints; choose another --name, or "
            f"--checkpoint.resume auto to resume"
        )
    if resume == "must" and not run.has_checkpoints:
        raise SetpointError(f"checkpoint.resume = must, but {path} has no checkpoint")
    if resume != "restart" and run.missing_checkpoints is not None:
        raise SetpointError(
            f"{path} {run.missing_checkpoints}, so there is nothing to resume from. "
            "--checkpoint.resume restart trains it again from step 0 and keeps its metrics next "
            "to the new ones; another --name creates a separate run"
        )


def _refuse_ranks(job: Job) -> None:
    ranks, started = job.parallel.world_size, launched()
    if ranks == started:
        return
    situation = f"a launcher started {started}" if started > 1 else "only one process was started"
    raise SetpointError(
        f"parallel.world_size = {ranks}, but {situation}.\nValid: `setpoint train ... --nproc "
        f"{ranks}`, or `torchrun --nproc-per-node {ranks} -m setpoint train ...`; `setpoint check "
        f"--world-size {ranks}` verifies the plan"
    )


SAME_ON_ALL_RANKS = ("code", "python", "packages")
"""Facts of the environment that must be equal on all ranks."""


def compare_on_all_ranks(
    world: World,
    job: Job,
    directory: str | Path | None,
    accept: Sequence[str],
    place: Path | None = None,
) -> Run:
    """Compare a job with its record on every rank, and continue on all ranks or on none.

    Arguments:
        directory, place: see `compare`.

    Raises:
        SetpointError: `compare` raises it on any rank, or the ranks differ in job or code.
    """
    run: Run | None = None
    refused: SetpointError | None = None
    try:
        run = compare(job, directory, accept, place)
    except SetpointError as error:
        if world.size == 1:
            raise
        refused = error
    if run is not None:
        run.world = world
        if world.size == 1:
            return run
    code = environment()
    facts = {name: code.get(name) for name in SAME_ON_ALL_RANKS}
    if run is not None:
        facts["fingerprint"] = fingerprint(run.job)
        facts["run directory"] = str(run.directory.resolve())
    answers = world.all_of((None if refused is None else str(refused), facts))
    for rank, (text, _) in enumerate(answers):
        if text is not None:
            if refused is not None and rank == world.rank:
                raise refused
            raise RemoteRankError(f"rank {rank}: {text}")
    for rank, (_, compared) in enumerate(answers):
        for name, value in answers[0][1].items():
            if compared[name] != value:
                raise SetpointError(
                    f"the ranks differ: {name} is {value!r} on rank 0 and {compared[name]!r} on "
                    f"rank {rank}.\nValid: the same configuration and code on all ranks"
                )
    assert run is not None
    return run


def progress_of(job: Job, world: World) -> Progress:
    """Build the progress display, which exists only on the main rank."""
    mode = job.tracking.progress if world.is_main else "none"
    return make_progress(mode, total_steps=final_step(job))


def final_step(job: Job) -> int | None:
    """Last step of the duration; None if steps are not limited."""
    steps = job.duration.in_unit("steps")
    return None if steps is None else int(steps)


@contextmanager
def settings_of(job: Job) -> Iterator[None]:
    """Apply the process-wide settings of a job.

    Returns:
        a context that restores the previous settings on exit.

    Raises:
        SetpointError: the folder for compiled code cannot be created or written to.
        RunError: an operation has no deterministic implementation.
    """
    parallel, float8 = job.parallel, job.precision.float8
    with ExitStack() as stack:
        if job.memory.malloc_retain:
            stack.enter_context(retain_freed_memory())
        if job.memory.expandable_segments:
            stack.enter_context(expandable_segments())
        stack.enter_context(determinism(job.deterministic))
        stack.enter_context(fp32_products(bool(job.precision.tf32)))
        if job.compile is not None:
            fuses, splits = parallel.async_tensor_parallel, parallel.splits_backward
            as_eager = float8 is not None and float8.recipe.startswith("rowwise")
            from setpoint.compile.compile_model import compiling

            stack.enter_context(compiling(job.compile, splits, fuses, as_eager))
        yield


def device_line(job: Job, device: torch.device) -> str:
    """Describe the device of a run, its ranks and its dtypes.

    Returns:
        for example `device: cuda:0 (NVIDIA H100 80GB HBM3), 8 ranks: shard 8 (FSDP2), fp32 computed
        in bf16`.
    """
    name = str(device)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        name = f"cuda:{index} ({torch.cuda.get_device_name(index)})"
    stored, compute = job.precision.params, job.precision.compute
    formats = stored if stored == compute else f"{stored} computed in {compute}"
    if is_emulated(compute, device):
        formats += ", which this processor emulates: fp32 is several times as fast"
    topology = job.parallel.topology
    machine = os.environ.get("LOCAL_WORLD_SIZE", "")
    if machine.isdecimal() and 0 < int(machine) < job.parallel.world_size:
        count = -(-job.parallel.world_size // int(machine))
        topology = topology.replace("ranks", f"ranks on {count} machines", 1)
    return f"device: {name}, {topology}, {formats}"
