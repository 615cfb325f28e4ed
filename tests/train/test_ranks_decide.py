"""Two ranks decide the same at each step: when to stop or save, and what a step is worth."""

import math
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from setpoint.ops.bad_batches import BadBatches, read_bad_batch
from setpoint.ops.slow_steps import StragglersCallback
from setpoint.parallel.world import World
from setpoint.resilience.signals import Abandoned, StopRequest
from setpoint.shapes.batch import Count, StepBatch
from setpoint.track.jsonl import NoEvents
from setpoint.track.progress import make_progress
from setpoint.train.build.components import build_components
from setpoint.train.loop import Callback, Loop
from setpoint.train.position import Position
from setpoint.train.verdict import StepResult

from ..support.ranks import run_on_ranks
from .poison import Poisoned
from .small import loop_of, small_job

WORLD = 2


class Asked(Callback):
    """Asks its own rank to stop in the middle of a step, and counts collectives."""

    def __init__(self, rank: int, when: int) -> None:
        self.rank, self.when = rank, when
        self.steps: list[int] = []
        self.saves: list[int] = []

    def after_step(self, loop: Loop, result: StepResult) -> None:
        self.steps.append(loop.position.step)
        if loop.sync.saves_now:
            self.saves.append(loop.position.step)
        if self.rank == 1 and loop.position.step == 1:
            signal.raise_signal(signal.SIGUSR2)  # to one rank; the others hear of it, too
        if self.rank == 1 and loop.position.step == self.when:
            loop.stop.request()  # which the others hear of in the next step
        if loop.sync.is_stopping:
            try:
                loop.check()
            except Abandoned:
                return
            raise AssertionError("an evaluation would go on")


def agree(loop: Loop, rank: int) -> None:
    """Compare what the ranks know of their position."""
    mine = torch.tensor([loop.position.step, loop.position.seconds], dtype=torch.float64)
    both = [torch.empty_like(mine) for _ in range(WORLD)]
    dist.all_gather(both, mine)
    assert torch.equal(*both), both


def ends_alike(folder: Path) -> None:
    """Rank 1 is asked to stop after step 3, which all hear of in step 4."""
    rank = dist.get_rank()
    job = small_job(folder, "evaluation=null", "model.dropout=0")
    components = build_components(job)
    assert (components.world.rank, components.world.size) == (rank, WORLD)
    calls, total, of_hosts = [0, 0], World.sum, World.sum_numbers

    def counted(self: World, *tensors: torch.Tensor) -> None:
        calls[0] += len(tensors)
        total(self, *tensors)

    def counted_of_hosts(self: World, *numbers: float) -> list[float]:
        calls[1] += 1
        return of_hosts(self, *numbers)

    World.sum, World.sum_numbers = counted, counted_of_hosts
    callback, stop = Asked(rank, 3), StopRequest()
    stop.resumable = True
    with stop:
        loop = Loop(job, components, [callback], stop, Position())
        loop.run()
        assert callback.steps == [1, 2, 3, 4]
        assert callback.saves == [2]
        # All that a step has found out; and of the hosts what it counts, and what they were asked.
        assert calls == [4, 2 * 4]
        assert stop.status == 75 and stop.defers
        agree(loop, rank)
    World.sum, World.sum_numbers = total, of_hosts

    class Slow(Callback):
        """Rank 1 alone would end earlier."""

        def start(self, loop: Loop) -> None:
            take = components.feed.take

            def slowly() -> Any:
                time.sleep(0.1 * rank)
                return take()

            components.feed.take = slowly

    timed = small_job(folder, "duration=0.3 s", "evaluation=null")
    loop = loop_of(timed, Slow(), components=components)
    loop.run()
    agree(loop, rank)


def answers_once(folder: Path) -> None:
    """Signals to all ranks are heard by rank 0 before step 2 or 6, and by rank 1 later.

    SIGUSR2 while they agree on step 2, and again after that; SIGINT after they agreed on step 6.
    What rank 1 alone hears before the first step, rank 0 stops for as well.
    """
    rank = dist.get_rank()
    job = small_job(folder, "evaluation=null", "model.dropout=0", "duration=9 steps")
    components, total, saves = build_components(job), World.sum_numbers, list[int]()
    loop: Loop

    def interrupted(self: World, *numbers: float) -> list[float]:
        found = total(self, *numbers)
        if rank == 1 and loop.position.step == 1:
            signal.raise_signal(signal.SIGUSR2)
        return found

    class Heard(Callback):
        def after_step(self, loop: Loop, result: StepResult) -> None:
            step = loop.position.step
            if loop.sync.saves_now:
                saves.append(step)
            if step == 1 + rank:
                signal.raise_signal(signal.SIGUSR2)
            if step == 5 + rank:
                signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch, StopRequest() as stop:
        patch.setattr(World, "sum_numbers", interrupted)
        patch.setattr("setpoint.resilience.signals.REPEATED", 1e9)  # however slow the machine is
        stop.resumable = True
        loop = Loop(job, components, [Heard()], stop, Position())
        loop.run()
        assert saves == [2], (rank, saves)
        assert (loop.position.step, stop.status, stop.cause) == (6, 130, "Ctrl-C"), rank
        agree(loop, rank)

    class Early(Callback):
        def start(self, loop: Loop) -> None:
            if rank == 1:
                loop.stop.ask("its time is over")

    with StopRequest() as stop:
        stop.resumable = True
        loop = Loop(job, components, [Early()], stop, Position())
        loop.run()
        assert (loop.position.step, stop.status, stop.cause) == (0, 75, "its time is over"), rank


def refuses_alike(folder: Path) -> None:
    """The gradients of rank 1 alone are not finite in step 2; a signal waits for the step."""
    rank, shared = dist.get_rank(), folder.parent
    job = small_job(folder, "duration=4 steps", "evaluation=null", "resilience.non_finite=skip")
    components = build_components(job)
    found: list[str] = []

    class Seen(Callback):
        def after_step(self, loop: Loop, result: StepResult) -> None:
            found.append(result.verdict.value)
            # As SaveCallback leaves it: nothing is lost, but the other rank waits for this one.
            loop.stop.has_unsaved = False
            if rank == 0 and loop.position.step == 2:
                signal.raise_signal(signal.SIGTERM)

    steps, taken = [0], list[StepBatch]()

    class Kept(BadBatches):
        def bad_step(self, loop: Loop, batch: StepBatch, total: Count, result: StepResult) -> None:
            taken.append(batch)
            super().bad_step(loop, batch, total, result)

    progress = make_progress("none", total_steps=None)
    run = SimpleNamespace(
        job=job, directory=shared, world=components.world, events=NoEvents(), progress=progress
    )

    def broken(gradient: torch.Tensor) -> torch.Tensor:
        steps[0] += 1
        bad = rank == 1 and steps[0] in (3, 4)  # two micro-batches
        return gradient * (math.inf if bad else 1.0)

    next(components.model.parameters()).register_hook(broken)
    stop, kept = StopRequest(), Kept()
    stop.resumable = True
    kept.opened(cast("Any", run), ExitStack())
    with stop:
        Loop(job, components, [Seen(), kept], stop, Position()).run()
    assert found == ["taken", "skipped", "taken"], found
    assert stop.status == 75
    dist.barrier()
    saved = read_bad_batch(shared, 2)
    assert saved is not None and saved.facts["data_ranks"] == WORLD
    noise, batches = saved.shares[rank]
    assert noise == rank and len(taken) == 1
    for one, other in zip(batches, taken[0].batches, strict=True):
        assert torch.equal(one.inputs, other.inputs)


def skips_spikes_alike(folder: Path) -> None:
    """The loss of rank 1 alone is a spike in step 4, which no rank trains on."""
    rank = dist.get_rank()
    flags = ("resilience.spike={window=3, factor=1.5}", "model.dropout=0")
    job = small_job(folder, "duration=6 steps", "evaluation=null", *flags)
    components, found = build_components(job), list[str]()
    if rank == 1:
        poisoned: Any = Poisoned(components, [8], 9.0)  # of 4 sequences: both ranks
        components.objective = poisoned

    class Seen(Callback):
        def after_step(self, loop: Loop, result: StepResult) -> None:
            found.append(result.verdict.value)

    loop_of(job, Seen(), components=components).run()
    assert found == ["taken"] * 3 + ["skipped"] + ["taken"] * 2, found
    assert components.spikes is not None
    mine = torch.tensor(components.spikes.losses, dtype=torch.float64)
    both = [torch.empty_like(mine) for _ in range(WORLD)]
    dist.all_gather(both, mine)
    assert torch.equal(*both)


READS = (
    "item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__",
)  # fmt: skip
"""How the host gets at the numbers of a tensor."""


def waits_for_no_device(folder: Path) -> None:
    for moe in ("null", "{experts: 4, top_k: 2}"):
        train_ahead(folder, dist.get_rank(), f"model.moe={moe}")


def train_ahead(folder: Path, rank: int, *flags: str) -> None:
    """Steps that nothing is due after read no tensor, and train as those that are read at once.

    The gradients of rank 1 alone are not numbers in step 3, which the ranks hear of in step 4.
    """
    job = small_job(
        folder, "duration=6 steps", "evaluation=null", "resilience.non_finite=skip",
        "parallel.world_size=2", "parallel.shard=2", "batch.accumulation=2",
        "optimizer.clip_norm=0.1", *flags,
    )  # fmt: skip
    reads, told = list[tuple[int, str]](), list[tuple[int, str, float]]()

    class Seen(Callback):
        def needs_result(self, loop: Loop) -> bool:
            return False

        def after_step(self, loop: Loop, result: StepResult) -> None:
            assert (loop.previous, loop.position.step) == (result.began, result.step)
            told.append((result.step, result.verdict.value, result.loss))

    def started() -> Loop:
        components, calls = build_components(job), [0]
        share = components.objective.share

        def broken(*given: Any) -> Any:
            calls[0] += 1
            found = share(*given)
            bad = rank == 1 and calls[0] in (5, 6)  # two micro-batches
            return found._replace(loss=found.loss * math.nan) if bad else found

        components.objective.share = broken  # type: ignore[method-assign]
        return loop_of(job, Seen(), components=components)

    def counted(name: str, real: Any) -> Any:
        def read(*given: Any) -> Any:
            reads.append((ahead.position.step + 1, name))
            return real(*given)

        return read

    ahead, at_once = started(), started()
    with pytest.MonkeyPatch.context() as patch:
        # On a CPU clipping looks at the norm, which waits for nothing there.
        patch.setattr("setpoint.optim.clip._is_within", lambda *_: False)
        for name in READS:
            patch.setattr(torch.Tensor, name, counted(name, getattr(torch.Tensor, name)))
        ahead.run()
    # The first step meets the ranks to see whether any was asked to stop.
    assert {step for step, _ in reads} <= {1}, reads
    results = [at_once.step() for _ in range(6)]
    assert told == [(each.step, each.verdict.value, each.loss) for each in results]
    assert [verdict for _, verdict, _ in told] == ["taken"] * 2 + ["skipped"] + ["taken"] * 3
    for one, other in zip(
        ahead.components.model.parameters(), at_once.components.model.parameters(), strict=True
    ):
        assert torch.equal(one.to_local(), other.to_local())  # type: ignore[attr-defined,operator]


def names_slow_ranks(folder: Path) -> None:
    """Rank 1 takes long to read data, in its forward and in its backward, in two steps each.

    In backward rank 0 waits as long for its gradients, which is not a work of its own. The clock is
    one that the test moves.
    """
    rank = dist.get_rank()
    flags = ("resilience.stragglers={every=2 steps, factor=1.6}", "model.dropout=0")
    job = small_job(folder, "duration=8 steps", "evaluation=null", *flags)
    components, found = build_components(job), list[dict[str, Any]]()
    names, step, clock = ["none", "data", "forward", "backward"], [0], [0.0]
    take, share, scale = components.feed.take, components.objective.share, components.scaler.scale

    def spend(part: str, who: int = 1) -> None:
        if rank == who and part == names[(step[0] - 1) // 2]:
            clock[0] += 2.0

    def slow_data() -> StepBatch:
        step[0] += 1
        spend("data")
        return take()

    def slow_forward(*given: Any) -> Any:
        spend("forward")
        return share(*given)

    class Waiting:
        """A loss after whose backward the other rank is waited for."""

        def __init__(self, loss: torch.Tensor) -> None:
            self.loss = scale(loss)

        def backward(self) -> None:
            self.loss.backward()
            spend("backward", who=0)

    patched: Any = components
    patched.feed.take, patched.objective.share = slow_data, slow_forward
    patched.scaler.scale = Waiting
    next(components.model.parameters()).register_hook(lambda _: spend("backward"))

    class Seen(NoEvents):
        def write(self, event: str, **details: Any) -> None:
            found.append(details)

    assert job.resilience.stragglers is not None
    callback = StragglersCallback(job.resilience.stragglers)
    callback.events, callback.note = Seen(), lambda line: None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: clock[0])
        loop_of(job, callback, components=components).run()
    micro = job.batch.accumulation
    for facts, (part, seconds) in zip(
        found, {"data": 2.0, "forward": 2.0 * micro, "backward": 2.0 * micro}.items(), strict=True
    ):
        (each,) = facts["ranks"]
        assert (each.pop("rank"), facts["median"]) == (1, seconds / 2), facts
        assert {name for name, spent in each.items() if spent} == {part}, facts
        assert each[part] == seconds
    assert [facts["step"] for facts in found] == [4, 6, 8]


def test_ranks_decide_alike() -> None:
    run_on_ranks(
        WORLD,
        ends_alike,
        answers_once,
        refuses_alike,
        skips_spikes_alike,
        waits_for_no_device,
        names_slow_ranks,
    )
