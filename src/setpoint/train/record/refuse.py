"""What is refused before anything is built or written: by the configuration and the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from setpoint.checkpoint.layout import list_checkpoints
from setpoint.config import (
    CONFIG,
    NEEDS,
    ConfigError,
    SetpointError,
    need_resolved,
    resolve,
    verify,
)
from setpoint.parallel.rank import launched
from setpoint.track.jsonl import read_jsonl
from setpoint.track.run_directory import RunDirectory
from setpoint.train.config import Job
from setpoint.train.contract import (
    Accepted,
    check_contract,
    other_division,
    refuse_renaming,
    split_paths,
)
from setpoint.train.run_name import draw_seed, find_run
from setpoint.train.run_status import Kept, kept_files, refuse_stopped

Stamp = tuple[int | None, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Plan:
    """A job that may be trained in a place, as far as can be known before the data is read.

    Arguments:
        job: with its seed drawn.
        looked_at: the run directory, not locked and not to be written to.
        accept: fields and sections of the fingerprint that may differ from the record.
        accepted: what differs from the record, the data aside; None for a new run.
        stamp: the record and the checkpoints as they were when they were compared.
        kept: the checkpoint to read files from that are gone.
    """

    job: Job
    path: Path
    looked_at: RunDirectory
    accept: Sequence[str]
    accepted: Accepted | None
    stamp: Stamp
    kept: Kept

    @property
    def has_checkpoints(self) -> bool:
        """Whether the run goes on from weights of its own."""
        return bool(self.stamp[1])

    @property
    def begins_anew(self) -> bool:
        """Whether weights to start from count: the run has none of its own, and loads not all."""
        section = self.job.checkpoint
        return not self.has_checkpoints and (section.load is None or section.excludes_weights)

    def require_unchanged(self) -> None:
        """Refuse to go on where another process has trained since; call it with the lock held.

        Raises:
            SetpointError: the record or the checkpoints are others now.
        """
        if stamp_of(self.path) != self.stamp:
            raise SetpointError(
                f"another process has changed {self.path} while the run was being set up; run it "
                f"again to resume from what is there now"
            )


def refuse(
    job: Job, directory: str | Path | None, accept: Sequence[str], found: str | None = None
) -> Plan:
    """Compare a job with the record of its run directory.

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
    looked_at, stamp = RunDirectory.look(path), stamp_of(path)
    kept = kept_files(job, path)
    _check_resume(job, path, bool(stamp[1]))
    accepted = None
    if (path / CONFIG).exists() or stamp[1]:
        accepted = check_contract(str(path), job, accept, given=directory is not None)
        others = other_division(str(path), job) if stamp[1] else None
        if others is not None and job.checkpoint.division == "same":
            raise SetpointError(others)
        if directory is not None:
            refuse_renaming(str(path), accepted)
    elif accept:
        raise SetpointError(
            f"--accept {accept[0]} has no effect: there is no run to resume in {path}, so there is "
            f"no record to differ from. Leave --accept out, or give the directory of the run"
        )
    return Plan(job, path, looked_at, accept, accepted, stamp, kept)


def stamp_of(path: Path) -> Stamp:
    """When the record's configuration was written, and the steps of the checkpoints."""
    try:
        written = (path / CONFIG).stat().st_mtime_ns
    except OSError:
        written = None
    return written, tuple(list_checkpoints(path / "checkpoints"))


def what_is_gone(path: Path) -> str | None:
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
        none = "it saved none (checkpoint.last = none, or write = false)"
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
    gone = None if has_checkpoints or resume == "restart" else what_is_gone(path)
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
