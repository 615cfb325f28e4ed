"""Steps that are skipped, undone or refused: not finite, or spikes of the loss."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import ConfigError, RunError, resolve
from setpoint.precision.config import LossScale
from setpoint.precision.mixed_precision import LossScaler
from setpoint.resilience.config import Spike
from setpoint.track.jsonl import EventLog
from setpoint.track.trackers import Trackers
from setpoint.train.build.components import build_components
from setpoint.train.engine import Engine, Rates
from setpoint.train.loop import Callback, Loop
from setpoint.train.position import Position
from setpoint.train.run import train
from setpoint.train.verdict import BadStepPolicy, SpikedSteps, StepResult, Verdict

from ..support.snapshots import refused
from .poison import SEQUENCES, Poison, Poisoned, by_hand, check_rows, same
from .small import Killed, events, loop_of, rows, small_job, train_rows
from .test_finish import summary

FLAGS = ("duration=12 steps", "evaluation=null", "checkpoint.keep=null")


def test_a_rollback_goes_on_behind_the_bad_batch(tmp_path: Path, poison: Poison) -> None:
    """To the bit as a run by hand that goes from step 4 to the batch after the seventh."""
    job = small_job(tmp_path, *FLAGS, "resilience.non_finite=rollback", "tracking.every=1 steps")
    expected, results = by_hand(job, 4, -3, 8)
    poison(7)
    ended = train(job)
    assert same(ended.components, expected)
    check_rows(ended.directory, results)
    (event,) = events(ended.directory, "rollback")
    assert (event["step"], event["failed"], event["rollbacks"]) == (4, 7, 1)
    assert event["dropped"]["steps"] == 2 and event["dropped"]["seconds"] > 0
    assert event["loss"] == "NaN" and event["data"]["sources"][""]["epoch_row"] == 7 * SEQUENCES
    assert ended.components.feed.state_dict()["sources"][""]["epoch_row"] == 15 * SEQUENCES


def test_several_rollbacks_and_a_gradient_that_is_not_finite(
    tmp_path: Path, poison: Poison
) -> None:
    """Twice to one checkpoint, and once to the next; an infinite loss is as bad as none."""
    flags = ("resilience.non_finite=rollback", "resilience.non_finite.limit=2")
    job = small_job(tmp_path, *FLAGS, *flags)
    poison(5, 7, 8, 13, value=math.inf)
    # Batch 5 fails as step 5; then 6 is step 5 and 7 fails as step 6; 8 fails as step 5: too often.
    with refused(RunError):
        train(job)
    run = Path(next(tmp_path.glob("runs/*")))
    assert [e["failed"] for e in events(run, "rollback")] == [5, 6]
    # A restart goes on behind them, and counts them.
    with refused(RunError):
        train(job)
    assert [e["failed"] for e in events(run, "rollback")] == [5, 6]
    more = small_job(tmp_path, *FLAGS, *flags[:1], "resilience.non_finite.limit=3")
    ended = train(more)
    assert [(e["failed"], e["rollbacks"]) for e in events(run, "rollback")][2:] == [(5, 3), (9, 1)]
    whole = train(more, directory=tmp_path / "whole")
    assert rows(run) == rows(whole.directory) and same(ended.components, whole.components)
    poison(5, 7, 13, value=math.inf)
    other = small_job(tmp_path, *FLAGS, *flags, "name=other")
    # Step 5 to 8 take batches 8 to 11; step 8 is saved; 12 is step 9, and 13 fails as step 10.
    expected, results = by_hand(other, 4, -3, 4, -2, 4)
    ended = train(other)
    assert [e["step"] for e in events(ended.directory, "rollback")] == [4, 4, 8]
    assert same(ended.components, expected)
    check_rows(ended.directory, results)


def on_event(patch: pytest.MonkeyPatch) -> None:
    write = EventLog.write

    def dying(self: EventLog, kind: str, **facts: Any) -> None:
        write(self, kind, **facts)
        if kind == "rollback":
            raise Killed

    patch.setattr(EventLog, "write", dying)


def after_rewind(patch: pytest.MonkeyPatch) -> None:
    rewind = Trackers.rewind

    def dying(self: Trackers, *given: Any) -> None:
        rewind(self, *given)
        raise Killed

    patch.setattr(Trackers, "rewind", dying)


def two_steps_later(patch: pytest.MonkeyPatch) -> None:
    begin_again, advance = Loop.continue_from, Loop.advance
    left: list[int] = []

    def begin(self: Loop, position: Position) -> None:
        begin_again(self, position)
        left.append(2)

    def dying(self: Loop, *given: Any) -> None:
        advance(self, *given)
        if left:
            left[0] -= 1
            if left[0] == 0:
                raise Killed

    patch.setattr(Loop, "continue_from", begin)
    patch.setattr(Loop, "advance", dying)


@pytest.mark.parametrize("kill", [on_event, after_rewind, two_steps_later])
def test_killed_in_the_middle_of_a_rollback(
    tmp_path: Path, poison: Poison, kill: Callable[[pytest.MonkeyPatch], None]
) -> None:
    job = small_job(tmp_path, *FLAGS, "resilience.non_finite=rollback")
    expected, results = by_hand(job, 4, -3, 8)
    poison(7)
    with pytest.MonkeyPatch.context() as patch:
        kill(patch)
        with pytest.raises(Killed):
            train(job)
    ended = train(job)
    assert ended.started.step == 4
    assert same(ended.components, expected)
    check_rows(ended.directory, results)


def test_every_callback_and_tracker_hears_of_a_rollback(
    tmp_path: Path, poison: Poison, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the position of the checkpoint, in place of the step; evaluations come again."""
    told: list[tuple[str, int]] = []

    class Told(Callback):
        def after_step(self, loop: Loop, result: StepResult) -> None:
            told.append(("step", loop.position.step))

        def rewound(self, loop: Loop) -> None:
            assert loop.previous == loop.position and not loop.is_over and not loop.scores
            told.append(("rewound", loop.position.step))

    monkeypatch.setattr("setpoint.train.run.package_callbacks", lambda run: [Told()])
    poison(6)
    flags = ("duration=7 steps", "evaluation.every=1 steps", "resilience.non_finite=rollback")
    run = train(small_job(tmp_path, *flags, "profiling={wait=2, warmup=0, active=4}")).directory
    steps = [*range(1, 6)], [*range(5, 8)]
    assert told == [
        *(("step", n) for n in steps[0]), ("rewound", 4), *(("step", n) for n in steps[1]),
    ]  # fmt: skip
    for kind in ("train", "evaluation"):
        assert [row["step"] for row in rows(run) if row["kind"] == kind] == [*range(1, 8)]


def test_without_a_checkpoint_there_is_no_rollback(tmp_path: Path, poison: Poison) -> None:
    poison(3)
    with refused(RunError):
        train(small_job(tmp_path, *FLAGS, "resilience.non_finite=rollback"))
    flags = ("resilience.non_finite=rollback", "checkpoint.at_start=true", "name=other")
    ended = train(small_job(tmp_path, *FLAGS, *flags))
    assert [e["step"] for e in events(ended.directory, "rollback")] == [0]
    with refused(ConfigError):
        small_job(tmp_path, "resilience.non_finite=rollback", "checkpoint.every=never")


def test_a_skipped_step_counts_and_changes_nothing(tmp_path: Path, poison: Poison) -> None:
    job = small_job(tmp_path, *FLAGS, "resilience.non_finite=skip")
    components = build_components(job)
    loop, results = loop_of(job, components=components), []
    for step in range(1, 13):
        if step in (3, 8, 9):
            tokens = components.feed.take().rank_total.tokens
            past, epochs = loop.position, components.feed.epoch
            loop.position = Position(past.step + 1, past.tokens + tokens, epochs, past.seconds)
        else:
            results.append(loop.step())
    poison(3, 8, 9)
    ended = train(job)
    assert same(ended.components, components)
    found = train_rows(ended.directory)
    assert [row["loss"] for row in found if row["step"] not in (3, 8, 9)] == [
        result.loss for result in results
    ]
    assert [row["skipped_steps"] for row in found] == [0, 0, 1, 1, 1, 1, 1, 2, 3, 3, 3, 3]
    assert [(e["step"], e["in_a_row"]) for e in events(ended.directory, "skip")] == [
        (3, 1), (8, 1), (9, 2),
    ]  # fmt: skip
    assert ended.final_position.tokens == 12 * 64
    assert "steps 12, 3 of them skipped" in summary(ended)


def test_a_run_that_skips_all_steps_says_so(tmp_path: Path, poison: Poison) -> None:
    flags = ("resilience.non_finite=skip", "resilience.non_finite.limit=9")
    poison(*range(1, 5), value=math.nan)
    ended = train(small_job(tmp_path, *FLAGS, *flags, "duration=4 steps"))
    said = "all 4 steps were skipped: nothing was trained"
    assert [event["untrained"] for event in events(ended.directory, "end")] == [said]
    assert f"warning: {said}" in (ended.directory / "logs" / "rank-0.log").read_text()
    assert "state finished, but untrained: all 4 steps were skipped" in summary(ended)


def test_the_limit_of_skipped_steps_holds_over_a_resume(tmp_path: Path, poison: Poison) -> None:
    """The count is in the checkpoint of step 4; two more are skipped, and the third is too many."""
    flags = ("resilience.non_finite=skip", "resilience.non_finite.limit=3", "tracking.every=5")
    job = small_job(tmp_path, *FLAGS, *flags)
    poison(4, 5, 6, 7)
    for _ in range(2):
        with refused(RunError):
            train(job)
    run = next(tmp_path.glob("runs/*"))
    state = json.loads((run / "checkpoints/step-00000004/state.json").read_text())
    assert state["non_finite"] == {"in_a_row": 1, "skipped": 1}
    # The mean of the row is over the steps that have a loss.
    assert all(math.isfinite(row["mean_loss"]) for row in rows(run))


def test_rows_of_skipped_steps_are_the_same_after_a_resume(tmp_path: Path, poison: Poison) -> None:
    """Experts are shown as the last step that was taken chose them, be it in a session before."""
    flags = (
        "model.moe={experts: 4, top_k: 2}", "resilience.non_finite=skip", "evaluation=null",
        "duration=12 steps", "tracking.every=5", "tracking.metrics.update_ratios=[model]",
    )  # fmt: skip
    poison(9, 10)
    job = small_job(tmp_path, *flags)
    whole = train(job, directory=tmp_path / "whole")
    for until in (8, None):
        train(job, directory=tmp_path / "parts", until=until)
    found = rows(tmp_path / "parts")
    assert found == rows(whole.directory) and all("expert_load" in row for row in found)


def test_a_refused_step_leaves_no_gradient_and_lets_a_scale_fall(tmp_path: Path) -> None:
    """A skipped step of fp16 is one whose gradients overflow, so that the next one may not."""
    job = small_job(tmp_path)
    components = build_components(job)
    components.scaler = LossScaler("cpu", resolve(LossScale(initial=1024.0)))
    poisoned: Any = Poisoned(components, range(9))
    components.objective = poisoned
    engine, step = Engine(job, components), components.feed.take()
    for expected in (512.0, 256.0):
        ended = engine.update(engine.forward_backward(step, step.rank_total), Rates(1e-3, 0.0))()
        assert ended.verdict is Verdict.REFUSED
        assert components.scaler.get_scale() == expected
        assert all(parameter.grad is None for parameter in components.model.parameters())


def test_a_first_step_is_no_fault_of_the_learning_rate(tmp_path: Path) -> None:
    job = small_job(tmp_path, "model.pretrained=weights")
    policy = BadStepPolicy(job.resilience.non_finite, "resilience.non_finite")
    first = StepResult(Verdict.REFUSED, policy=policy, wrong="the loss is nan")
    with refused(RunError):
        policy.apply(first, job, can_roll_back=False)
    with refused(RunError):
        policy.apply(replace(first, began=Position(step=1)), job, can_roll_back=False)


def test_numbers_that_are_finite_on_this_rank_are_not_called_otherwise(tmp_path: Path) -> None:
    """Replicas compute the norm of their own gradients."""
    job = small_job(tmp_path)
    policy = BadStepPolicy(job.resilience.non_finite, "resilience.non_finite")
    result = StepResult(Verdict.REFUSED, loss=4.0, grad_norm=2.0, policy=policy)
    result = replace(result, wrong=policy.describe(result))
    with refused(RunError):
        policy.apply(result, job, can_roll_back=False)


SPIKES = (
    "duration=14 steps", "evaluation=null", "checkpoint.keep=null", "schedule=constant",
    "resilience.spike={window=6, factor=1.5}",
)  # fmt: skip


def acted(losses: list[float], **options: float) -> list[float]:
    """Those that are acted on; all others are trained on."""
    spikes = SpikedSteps(resolve(Spike(window=4, **options)))  # pyright: ignore[reportArgumentType]
    found: list[float] = []
    for loss in losses:
        acts = spikes.acts_on(loss)
        spikes.note(loss, trained_on=not acts)
        found += [loss] if acts else []
    return found


def test_a_spike_is_above_a_multiple_and_above_deviations() -> None:
    """Of 4, 3, 5, 4 the median is 4 and the median absolute deviation 0.5."""
    before = [4.0, 3.0, 5.0, 4.0]
    high = 4 + 8 * 1.4826 * 0.5 + 0.01
    for loss, options in ((6.01, {"factor": 1.5, "deviations": 0}), (high, {"factor": 1})):
        assert acted([*before, loss - 0.02], **options) == []
        assert acted([*before, loss], **options) == [loss]
    assert acted([*before, 9.0], factor=1.5, deviations=8) == []
    # The first ones have nothing to be compared with, and a loss may be negative.
    assert acted([9.0, 1.0, 99.0, 1.0, 1.0], factor=1.5) == []
    assert acted([-4.0, -4.0, -4.0, -4.0, -3.9, 0.0], factor=1.5) == [0.0]
    # A level that stays is trained on where patience lasts until it is the median.
    assert acted([*before, *[9.0] * 5], factor=1.5, deviations=0, patience=2) == [9.0] * 4
    assert acted([*before, *[9.0] * 5], factor=1.5, deviations=0, patience=3) == []


def test_a_skipped_spike_changes_nothing_also_after_a_resume(
    tmp_path: Path, poison: Poison
) -> None:
    """The window goes over the checkpoint of step 8, and the tenth batch is five times as bad."""
    job = small_job(tmp_path, *SPIKES, "model.dropout=0")  # which is drawn by the step
    expected, results = by_hand(job, 9, -1, 4)
    poison(10, value=5.0)
    train(resolve(job.evolve(duration="8 steps")), directory=tmp_path / "run")
    ended = train(job, directory=tmp_path / "run")
    assert ended.started.step == 8 and same(ended.components, expected)
    found = train_rows(ended.directory)
    assert [row["skipped_steps"] for row in found] == [0] * 9 + [1] * 5
    # Step 10 is row 10 all the same, whose loss is that of the batch.
    assert [row["loss"] for row in found[10:]] == [result.loss for result in results[9:]]
    (event,) = events(ended.directory, "skip")
    assert (event["step"], event["cause"], event["in_a_row"]) == (10, "spike", 1)


def test_a_rollback_goes_on_behind_a_spike(tmp_path: Path, poison: Poison) -> None:
    job = small_job(tmp_path, *SPIKES, "resilience.spike.policy=rollback")
    expected, results = by_hand(job, 8, -2, 6)
    poison(10, value=5.0)
    ended = train(job)
    assert same(ended.components, expected)
    check_rows(ended.directory, results)
    (event,) = events(ended.directory, "rollback")
    assert (event["step"], event["failed"], event["cause"]) == (8, 10, "spike")
    with refused(ConfigError):
        small_job(tmp_path, *SPIKES, "resilience.spike.policy=rollback", "checkpoint.every=never")


def test_a_run_that_does_not_go_on_says_by_how_much(tmp_path: Path, poison: Poison) -> None:
    poison(10, 11, value=5.0)
    with pytest.raises(RunError) as caught:
        train(small_job(tmp_path, *SPIKES, "resilience.spike.policy=fail"))
    told = str(caught.value)
    assert told.startswith("step 10: the loss is ") and "not finite" not in told
    assert "a spike: the median of the 6 steps before is " in told
    assert told.endswith("resilience.spike.policy = skip or rollback")
    with pytest.raises(RunError, match=r"step 11.*as many as resilience.spike.policy.limit allows"):
        train(small_job(tmp_path, *SPIKES, "resilience.spike.policy.limit=1", "name=other"))
