"""The loop against plain PyTorch, written here, which shares nothing with it but the model."""

import hashlib
import math
import random
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from setpoint.checkpoint.loading import verify_directory
from setpoint.config import RunError
from setpoint.train.build.components import Components, build_components
from setpoint.train.config import Job
from setpoint.train.loop import Callback, Loop, Phase
from setpoint.train.run import train
from setpoint.train.verdict import StepResult

from ..support.snapshots import refused
from .poison import Poison
from .small import events, loop_of, rows, small_job

STEPS = 8


class Recorder(Callback):
    """Keeps what the loop tells."""

    def __init__(self) -> None:
        self.updates: list[StepResult] = []
        self.told: list[str] = []
        self.positions: list[tuple[int, int, bool]] = []

    def start(self, loop: Loop) -> None:
        self.told.append("start")

    def after_step(self, loop: Loop, result: StepResult) -> None:
        self.updates.append(result)
        self.positions.append((loop.previous.step, loop.position.step, loop.is_over))

    def finish(self, loop: Loop) -> None:
        self.told.append("finish")


def run_loop(job: Job) -> tuple[Components, Recorder]:
    """Train without a directory."""
    components, recorder = build_components(job), Recorder()
    loop_of(job, recorder, components=components).run()
    return components, recorder


def cosine(step: int, warmup: int, horizon: int, floor: float) -> float:
    """The factor in closed form."""
    if step < warmup:
        return (step + 1) / warmup
    share = min(1.0, (step - warmup) / (horizon - warmup))
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * share))


def plain_loop(
    job: Job, frozen: tuple[str, ...] = ()
) -> tuple[nn.Module, list[tuple[float, float, float]]]:
    """A training loop in plain PyTorch, of one micro-batch an update."""
    components = build_components(job)
    model, options, schedule = components.model, job.optimizer, job.schedule
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.ndim >= 2]
    vectors = [p for p in trained if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}],
        lr=options.lr,
        betas=options.betas,
        eps=options.eps,
        weight_decay=options.weight_decay,
        fused=True,
    )
    model.train()
    seen: list[tuple[float, float, float]] = []
    for step in range(STEPS):
        lr = options.lr * cosine(step, int(schedule.warmup.count), STEPS, schedule.floor)
        for group in optimizer.param_groups:
            group["lr"] = lr
        batch = components.feed.take().batches[0]
        key = hashlib.sha256(f"{job.seed}/rank 0/step {step}".encode()).digest()
        torch.manual_seed(int.from_bytes(key[:8], "big") >> 1)
        loss = F.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), options.clip_norm or math.inf)
        if options.clip_value is not None:
            nn.utils.clip_grad_value_(model.parameters(), options.clip_value)
        optimizer.step()
        optimizer.zero_grad()
        seen.append((loss.item(), norm.item(), lr))
    return model, seen


@pytest.mark.parametrize("tied", [False, True])
def test_frozen_parameters_stay_and_the_others_are_trained_as_without_them(
    tmp_path: Path, tied: bool
) -> None:
    """Frozen to the bit; a tied output matrix is frozen with the embedding, being one with it."""
    flags = (
        f"duration={STEPS} steps", "batch.accumulation=1", "batch.micro_size=4",
        "schedule.warmup=3", "optimizer.clip_norm=0.5", f"model.tie_embeddings={tied}",
    )  # fmt: skip
    patterns = "optimizer.frozen=[^embedding, query]"
    components, recorder = run_loop(small_job(tmp_path, *flags, patterns))
    names = [n for n, _ in components.model.named_parameters() if n.startswith("embedding")]
    names += [n for n, _ in components.model.named_parameters() if "query" in n]
    first = build_components(small_job(tmp_path, *flags))
    model, seen = plain_loop(small_job(tmp_path, *flags), tuple(names))
    for result, (loss, norm, _) in zip(recorder.updates, seen, strict=True):
        assert result.loss == pytest.approx(loss, rel=1e-6)
        assert result.grad_norm == pytest.approx(norm, rel=1e-5)
    theirs, start = dict(model.named_parameters()), dict(first.model.named_parameters())
    updated = {p for group in components.optimizer.param_groups for p in group["params"]}
    for name, ours in components.model.named_parameters():
        assert (name in names) == torch.equal(ours, start[name]), name
        assert (name in names) == (ours not in updated) == (ours not in components.optimizer.state)
        torch.testing.assert_close(ours, theirs[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("dropout", "clip"), [("0.0", "clip_value=0.005"), ("0.1", "clip_norm=0.5")]
)
def test_equal_to_a_plain_loop(tmp_path: Path, dropout: str, clip: str) -> None:
    job = small_job(
        tmp_path, f"duration={STEPS} steps", "batch.accumulation=1", "batch.micro_size=4",
        f"model.dropout={dropout}", "schedule.warmup=3", f"optimizer.{clip}",
    )  # fmt: skip
    components, recorder = run_loop(job)
    model, seen = plain_loop(job)
    assert len(recorder.updates) == STEPS
    clipped = 0
    for result, (loss, norm, lr) in zip(recorder.updates, seen, strict=True):
        assert result.lr == pytest.approx(lr, rel=1e-12)
        assert result.loss == result.cross_entropy == pytest.approx(loss, rel=1e-6)
        assert result.grad_norm == pytest.approx(norm, rel=1e-5)
        clipped += norm > 0.5
    assert clipped >= 3
    theirs = dict(model.named_parameters())
    for name, ours in components.model.named_parameters():
        torch.testing.assert_close(ours, theirs[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("duration", "steps"),
    [
        ("5 steps", 5),
        ("300 tokens", 5),
        ("[9 steps, 0.02 epochs]", 3),
        ("[2 steps, 0.02 epochs]", 2),
    ],
)
def test_the_duration_ends_it(tmp_path: Path, duration: str, steps: int) -> None:
    job = small_job(tmp_path, f"duration={duration}", "schedule.horizon=9")
    assert len(run_loop(job)[1].updates) == steps


@pytest.mark.parametrize("where", ["start", "after_step", "never"])
def test_the_feed_is_closed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """After the callbacks are, in every case."""
    told: list[str] = []

    class Fails(Callback):
        def start(self, loop: Loop) -> None:
            assert where != "start"

        def after_step(self, loop: Loop, result: StepResult) -> None:
            assert where != "after_step"

        def close(self, loop: Loop) -> None:
            told.append("callback")

    job = small_job(tmp_path, "duration=2 steps")
    components = build_components(job)
    close = components.feed.close
    monkeypatch.setattr(components.feed, "close", lambda: (close(), told.append("feed")))
    loop = loop_of(job, Fails(), components=components)
    if where == "never":
        loop.run()
    else:
        with pytest.raises(AssertionError):
            loop.run()
    assert told == ["callback", "feed"]
    # What was dropped is drawn again: the position is as it was.
    assert components.feed.take().rank_total.tokens == 64


def test_a_callback_ends_it_in_order(tmp_path: Path) -> None:
    class Ender(Recorder):
        def after_step(self, loop: Loop, result: StepResult) -> None:
            super().after_step(loop, result)
            if loop.position.step == 4:
                loop.end("enough")

    ender, after = Ender(), Recorder()
    job = small_job(tmp_path, "duration=9 steps")
    loop = loop_of(job, ender, after)
    assert loop.goes_on and loop.end_reason is None
    loop.run()
    assert (loop.position.step, loop.end_reason, loop.goes_on) == (4, "enough", False)
    # Those that come after it see the last update, and all are told of the end.
    assert after.positions[-1] == (3, 4, True)
    assert ender.told == after.told == ["start", "finish"]
    # The rates are those of the whole run: an early end bends no curve.
    whole = run_loop(small_job(tmp_path, "duration=9 steps"))[1]
    assert [u.lr for u in ender.updates] == [u.lr for u in whole.updates[:4]]


def test_a_loss_that_is_not_finite_stops_before_the_update(tmp_path: Path, poison: Poison) -> None:
    job = small_job(tmp_path, "duration=9 steps", "checkpoint.every=1 steps", "checkpoint.keep=9")
    poison(4)
    with refused(RunError) as caught:
        train(job)
    assert caught.value.status == 1
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "checkpoints" / "latest").read_text() == "step-00000003\n"
    for folder in (run / "checkpoints").glob("step-*"):
        verify_directory(folder)
    assert max(row["step"] for row in rows(run)) == 3
    (fault,) = events(run, "fault")
    assert (fault["step"], fault["error"]) == (3, str(caught.value))
    # When the cause is gone, the run goes on from there.
    poison()
    assert train(job).started.step == 3


class Drawing(Callback):
    """Draws from the generators of the process, as a tracker of a user's own may."""

    def after_step(self, loop: Loop, result: StepResult) -> None:
        torch.randn(7)
        random.random()


def test_what_others_draw_changes_nothing(tmp_path: Path) -> None:
    """The numbers of a step depend on the seed and its number alone."""
    job = small_job(tmp_path, "model.dropout=0.3", "duration=6 steps")
    losses: list[list[float]] = []
    for others in ([], [Drawing()]):
        recorder = Recorder()
        torch.manual_seed(len(others))
        loop_of(job, *others, recorder).run()
        losses.append([update.loss for update in recorder.updates])
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == 6


class Noted(Callback):
    """Notes its name."""

    def __init__(self, name: str, phase: Phase, seen: list[str]) -> None:
        self.name, self.phase, self.seen = name, phase, seen

    def start(self, loop: Loop) -> None:
        self.seen.append(f"start {self.name}")

    def after_step(self, loop: Loop, result: StepResult) -> None:
        self.seen.append(self.name)


def test_phases_decide_the_order_and_within_one_the_order_of_building(tmp_path: Path) -> None:
    job, seen = small_job(tmp_path, "duration=1 steps"), list[str]()
    wanted = [(1, Phase.KEEP), (2, Phase.STEP), (3, Phase.EVALUATE), (4, Phase.STEP)]
    callbacks = [Noted(str(name), phase, seen) for name, phase in wanted]
    loop_of(job, *callbacks).run()
    order = ["2", "4", "3", "1"]
    assert seen == [*(f"start {name}" for name in order), *order]
    assert Callback.phase is Phase.OBSERVE


class Paused(Noted):
    """Is called after the first step, and after others at an interval."""

    min_interval = 60.0

    def after_first_step(self, loop: Loop, result: StepResult) -> None:
        self.seen.append(f"first {result.step}")


def test_the_first_step_and_an_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("setpoint.train.loop.time.monotonic", lambda: clock[0])
    job, seen = small_job(tmp_path, "duration=5 steps"), list[str]()
    paused = Paused("paused", Phase.OBSERVE, seen)
    loop = loop_of(job, paused)
    loop.engine.span = lambda name: (
        clock.append(clock.pop() + 25.0 * (name == "clip")) or nullcontext()
    )
    loop.run()
    # At 25, 50, 75, 100 and 125 s.
    assert seen == ["start paused", "first 1", "paused"]


def test_an_interval_that_is_no_number_of_seconds(tmp_path: Path) -> None:
    for interval in ("1 min", -1.0, float("nan"), True):
        own = type("Own", (Callback,), {"min_interval": interval})
        with refused():
            train(small_job(tmp_path, "duration=1 steps"), callbacks=[own()])
