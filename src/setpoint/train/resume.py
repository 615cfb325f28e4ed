"""Restoring a run's state: from its newest checkpoint, at start or rollback, or from a peer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from setpoint.checkpoint.loading import LoadedCheckpoint
from setpoint.checkpoint.store import OnDamaged
from setpoint.config import RunError, SetpointError, fingerprint
from setpoint.shapes.logged import MetricLog
from setpoint.shapes.placed import Placeable, box_of, local_part
from setpoint.track.jsonl import readable_rows
from setpoint.train.build.assets import assets_in, fallback_notes
from setpoint.train.build.components import data_line
from setpoint.train.build.job_data import describe_data_position
from setpoint.train.config import Job
from setpoint.train.contract import recorded_job
from setpoint.train.evaluation.scores import evaluation_state_of
from setpoint.train.loop import Loop
from setpoint.train.position import Position, is_over
from setpoint.train.row_metrics import LossMean
from setpoint.train.run_record import dropped_since
from setpoint.train.run_state import OF_FILES, FrozenParameters, restore, snapshot, states_of
from setpoint.train.session import Run
from setpoint.train.verdict import rollbacks_to
from setpoint.train.warm_start import describe_refrozen, refuse_changed, warm_start

if TYPE_CHECKING:
    from setpoint.train.verdict import StepResult


FETCHED = "fetched"
"""Temporary folder of a run for the checkpoint of a URL."""


def resume(run: Run) -> None:
    """Restore the components from the newest checkpoint, or load those that the job names.

    Raises:
        SetpointError: the checkpoint does not belong to this job.
        RunError: all checkpoints are damaged.
    """
    job, components, note = run.job, run.components, run.progress.note
    make_states(run)
    checkpoint = _newest_checkpoint(run)
    if checkpoint is None and run.accepted is not None:
        run.world.on_main(lambda: _start_again(run))
    with _folder_for_fetching(run) as folder:
        restore_or_load(run, checkpoint, folder)
        source = checkpoint or run.loaded
        if source is not None:
            # The initial state of the run; files may have moved or changed since.
            components.assets = assets_in(source.path) or components.assets
    if checkpoint is not None:
        run.resumed_at = checkpoint.step
        run.store.set_aside_after(checkpoint.step)
        for line in describe_refrozen(components, checkpoint) if _is_refrozen(run) else ():
            note(line)
    elif run.loaded is not None:
        if job.model.pretrained is not None and components.pretrained is None:
            note("model.pretrained is not read: checkpoint.load has all weights")
        refuse_changed(run.files.events, run.loaded)
    run.identity = job
    left_out = run.frozen.decide()
    if left_out is not None:
        note(left_out)
    run.had_nothing_left = is_over(job.duration, run.started)
    if not run.had_nothing_left:
        run.reason = run.evaluations.stop_reason(job.evaluation)
        run.had_nothing_left = run.reason is not None
        if run.had_nothing_left and run.loaded is not None:
            raise SetpointError(
                f"checkpoint.load = {job.checkpoint.load}: {run.reason}, so there is nothing left "
                f"to train.\nValid: add evaluation to checkpoint.exclude, which starts new counts"
            )
    if run.had_nothing_left and run.accepted is not None and run.accepted.learned:
        # Differences accepted by name are not used in training any more.
        run.identity = recorded_job(str(run.directory))
    if not run.had_nothing_left:
        note(data_line(job, components))
        if run.started.step:
            note(f"data position: {describe_data_position(job, components.feed.state_dict())}")
    if not run.had_nothing_left and run.evaluations.changed:
        changed = ", ".join(run.evaluations.changed)
        note(f"best metric reset: its definition changed: {changed}")
    for line in fallback_notes(job, run.fallback):
        note(line)


def make_states(run: Run, other_data: bool = True) -> None:
    """Create the states of a run: of components, metrics and trackers.

    Arguments:
        other_data: whether the documents may differ from those of the checkpoint; determined from
            the record, since a run may be killed before its first checkpoint with them.
    """
    job, components = run.job, run.components
    run.evaluations = evaluation_state_of(job, components)
    run.mean, run.metrics = LossMean(job.tracking.metrics.ema), MetricLog()
    run.frozen = FrozenParameters(job, components)
    run.states = states_of(
        job,
        components,
        run.evaluations,
        run.mean,
        run.trackers,
        other_data=other_data,
        other_frozen=_is_refrozen(run),
        metrics=run.metrics,
    )


def _is_refrozen(run: Run) -> bool:
    return run.accepted is not None and run.accepted.has("optimizer.frozen")


def restore_or_load(run: Run, checkpoint: LoadedCheckpoint | None, folder: Path) -> None:
    """Restore a run from its checkpoint, or from `checkpoint.load`, and record where it starts.

    Every rank must call it. After rollbacks to the checkpoint, the data continues after that of the
    failed steps.

    Arguments:
        checkpoint: None if the run has none.
        folder: folder for downloads, shared by all ranks.

    Raises:
        SetpointError: the checkpoint does not belong to this job.
    """
    job, components = run.job, run.components
    if checkpoint is None:
        run.started = Position()
        if job.checkpoint.load is not None:
            parts = components, run.states, run.frozen
            run.loaded, run.started = warm_start(job, *parts, folder)
        return
    step, state = checkpoint.step, checkpoint.state
    events = run.files.events
    rollbacks = components.world.on_main(lambda: rollbacks_to(readable_rows(events), step))
    for cause, event in rollbacks.items():
        policy = components.spikes if cause == "spike" else components.non_finite
        if policy is not None:
            policy.target, policy.rollbacks = step, event["rollbacks"]
        state = {**state, "loader": event["data"]}
    checkpoint = run.frozen.completed(replace(checkpoint, state=state))
    run.started = restore(job, run.states, checkpoint)


@contextmanager
def _folder_for_fetching(run: Run) -> Iterator[Path]:
    """A folder for a checkpoint from a URL, removed once all ranks have read it."""
    folder = run.directory / FETCHED
    try:
        yield folder
        if run.loaded is not None:
            run.world.all_of(None)
    finally:
        if run.world.is_main:
            rmtree(folder, ignore_errors=True)


def _newest_checkpoint(run: Run) -> LoadedCheckpoint | None:
    """Load the newest valid checkpoint, and report skipped ones."""
    run.store.prepare()
    passed: list[str] = []
    report = report_damage(run)

    def on_damaged(path: Path, reason: str) -> None:
        passed.append(reason)
        report(path, reason)

    newest: LoadedCheckpoint | None = None
    try:
        newest = run.store.load_newest(on_damaged)
    except SetpointError:
        # If all local ones are damaged, there may be others at a URL.
        if not passed or not any(callback.fetch(None) for callback in run.outer_callbacks):
            raise
        newest = run.store.load_newest(report)
    else:
        if passed and any(
            callback.fetch(newest and newest.step) for callback in run.outer_callbacks
        ):
            newest = run.store.load_newest(report)
    if newest is not None:
        run.progress.note(f"resuming {run.directory} at step {newest.step}")
    return newest


def report_damage(run: Run) -> OnDamaged:
    """Report and record each damaged checkpoint that is skipped."""

    def report(path: Path, reason: str) -> None:
        run.progress.note(f"{path.name} is corrupt, skipping it: {reason}")
        run.events.write("damaged", checkpoint=path.name, reason=reason)

    return report


def _start_again(run: Run) -> None:
    """Start a run again that has a record but no checkpoint."""
    path, missing = run.directory, run.missing_checkpoints
    if missing is None:
        begin = "at step 0" if run.job.checkpoint.load is None else "from checkpoint.load"
        run.progress.note(f"{path} has no checkpoint yet: it starts again {begin}")
        return
    metrics, to, lost = run.files.metrics, None, dropped_since(run, Position(), 0)
    if metrics.exists():
        to = next(
            place
            for number in count(1)
            if not (place := metrics.with_name(f"metrics.{number}.jsonl")).exists()
        )
    # Before rows are removed, on which listeners may rely.
    run.events.write("restart", step=0, metrics=to and to.name, **lost)
    if to is not None:
        metrics.rename(to)
    kept = f"; its metrics are kept as {to.name}" if to is not None else ""
    run.progress.note(f"{path} {missing}: it starts over at step 0{kept}")


def roll_back(run: Run, loop: Loop, failed: StepResult) -> Position:
    """Restore the components and the record from the newest valid checkpoint.

    Everything but the data position is restored: the data continues after the failed step, since
    the same batches would fail again.

    Returns:
        the position of the checkpoint.

    Raises:
        RunError: there is no checkpoint, or too many rollbacks to it.
    """
    step, policy = failed.step, failed.policy
    assert policy is not None
    cause = f"step {step}: {failed.wrong}"
    checkpoint = run.store.load_newest(report_damage(run))
    if checkpoint is None:
        raise RunError(
            f"{cause}, and {policy.field} = rollback has no checkpoint to return to. Lower "
            f"checkpoint.every ({run.job.checkpoint.every}), or set checkpoint.at_start = true"
        )
    count = policy.roll_back_to(checkpoint.step, step, failed.wrong)
    states = {name: state for name, state in run.states.items() if name != "data"}
    position = restore(run.job, states, run.frozen.completed(checkpoint))
    lost: dict[str, Any] = {}
    if loop.components.world.is_main:
        offset = run.trackers.metrics_offset
        lost = dropped_since(run, position, offset, reached=loop.position)
    run.events.write(
        "rollback",
        step=checkpoint.step,
        failed=step,
        cause=failed.cause,
        loss=failed.loss,
        grad_norm=failed.grad_norm,
        rollbacks=count,
        data=loop.components.data_position(),
        seconds=round(position.seconds, 3),
        **lost,
    )
    run.progress.note(
        f"{cause}; going back to step {checkpoint.step}, continuing with the data after it "
        f"(rollback {count})"
    )
    run.store.set_aside_after(checkpoint.step)
    run.trackers.rewind(checkpoint.step, run.progress.note)
    return position


def _compatibility_key(job: Job) -> str:
    """Key shared by all replica groups: what is trained, and how it is divided."""
    assert job.parallel.torchft is not None
    sizes = (job.batch.micro_size, job.batch.accumulation, job.parallel.torchft.group_size)
    return f"{fingerprint(job)} {sizes} {job.parallel.topology}"


class PeerShard(Placeable):
    """A shard of a tensor from the rank of the same index in another replica group.

    Arguments:
        shape: the shape of the whole tensor.
        offset: the position of the shard's first element in the whole tensor.
    """

    __slots__ = ("_shape", "local", "offset")

    def __init__(self, local: Tensor, shape: Sequence[int], offset: Sequence[int]) -> None:
        self.local, self._shape, self.offset = local, torch.Size(shape), tuple(offset)

    @property
    def shape(self) -> torch.Size:
        """See `Placeable.shape`."""
        return self._shape

    @property
    def dtype(self) -> torch.dtype:
        """See `Placeable.dtype`."""
        return self.local.dtype

    def box(self, offset: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Read the part; ranks of the same index have the same parts."""
        place = tuple(offset), tuple(shape)
        if place != (self.offset, tuple(self.local.shape)) and self.local.numel():
            raise SetpointError(
                f"a rank of another replica group has the elements of a tensor from {self.offset} "
                f"on, but this rank needs those from {place[0]} on.\nValid: the same ranks in "
                f"all groups"
            )
        return self.local.cpu()


def _captured(tensor: Tensor) -> Tensor | tuple[Tensor, tuple[int, ...], tuple[int, ...]]:
    """A copy of a tensor, or of this rank's part, in a form that can be sent to another process."""
    part = local_part(tensor).detach().clone()
    if local_part(tensor) is tensor:
        return part
    return part, tuple(tensor.shape), box_of(tensor)[1]


@contextmanager
def replica_groups(run: Run, loop: Loop) -> Iterator[None]:
    """Join the replica groups of torchft, which exchange the state of the run.

    Each group writes its own metric rows; rows of steps that it did not run are written by another
    group.
    """
    from setpoint.parallel.replica_groups import ReplicaGroups

    section = run.job.parallel.torchft
    assert section is not None
    states = {name: state for name, state in run.states.items() if name not in OF_FILES}
    key = _compatibility_key(run.job)
    groups = ReplicaGroups(section, run.job.parallel.timeout, key, run.world)

    def capture() -> dict[str, Any]:
        with snapshot(states, loop.position) as taken:
            tensors = {
                file: {name: _captured(tensor) for name, tensor in named.items()}
                for file, named in taken.tensors.items()
            }
            return {"tensors": tensors, "state": json.dumps(taken.state)}

    def heal(state: dict[str, Any]) -> None:
        before = loop.position.step
        tensors: dict[str, dict[str, Tensor | Placeable]] = {
            file: {
                name: PeerShard(*sent) if isinstance(sent, tuple) else sent
                for name, sent in named.items()
            }
            for file, named in state["tensors"].items()
        }
        source, plain = Path("the state of another replica group"), json.loads(state["state"])
        step: int = plain["position"]["step"]
        checkpoint = LoadedCheckpoint(step, dict(tensors), plain, None, source)
        loop.continue_from(restore(run.job, states, checkpoint))
        run.events.write("healed", step=step, before=before)
        run.progress.note(f"step {before}: continues at step {step}, from another replica group")

    def retaken(count: int) -> None:
        step = loop.position.step + 1
        run.events.write("retaken", step=step, groups=count)
        run.progress.note(
            f"step {step} is repeated: one of {count} replica groups was lost during it"
        )

    groups.capture, groups.restore, groups.retaken = capture, heal, retaken
    run.components.replica_groups = groups
    with groups:
        yield
