"""Going back to a checkpoint in the middle of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from setpoint.config import RunError
from setpoint.track.trackers import JSONL
from setpoint.train.record.session import cut_chain, report_damage
from setpoint.train.record.start import lost_since
from setpoint.train.record.state import restore

if TYPE_CHECKING:
    from setpoint.train.loop import Loop, StepResult
    from setpoint.train.position import Position
    from setpoint.train.record.context import Run, Start


def roll_back(run: Run, start: Start, loop: Loop, failed: StepResult) -> Position:
    """Bring the components and the record to the newest valid checkpoint.

    All states are those of the checkpoint but the position of the data, which goes on after the
    step that failed: the same batches would lead to the same step again.

    Returns:
        the position of the checkpoint.

    Raises:
        RunError: if there is none, or the run has gone back to it too often.
    """
    step, policy = failed.step, failed.policy
    assert policy is not None
    what = f"step {step}: {failed.wrong}"
    found = run.store.load(report_damage(run))
    if found is None:
        raise RunError(
            f"{what}, and {policy.field} = rollback has no checkpoint to go back to. Lower "
            f"checkpoint.every ({run.job.checkpoint.every}), or set checkpoint.at_start = true"
        )
    count = policy.roll_back_to(found.step, step, failed.wrong)
    states = {name: each for name, each in start.states.items() if name != "data"}
    position = restore(run.job, states, run.frozen.completed(found))
    lost: dict[str, Any] = {}
    if loop.parts.world.is_main:
        offset = run.trackers.states[JSONL]["offset"]
        lost = lost_since(run, position, offset, reached=loop.position)
    run.events.write(
        "rollback",
        step=found.step,
        failed=step,
        cause=failed.cause,
        loss=failed.loss,
        grad_norm=failed.grad_norm,
        rollbacks=count,
        data=loop.parts.feed.state_dict(),
        seconds=round(position.seconds, 3),
        **lost,
    )
    run.progress.note(
        f"{what}; going back to step {found.step}, and on with the data after it (rollback {count})"
    )
    run.store.set_aside_after(found.step)
    if run.uploads is not None:
        run.uploads.set_aside_after(position)
    cut_chain(run)
    run.trackers.rewind(found.step, run.progress.note)
    return position
