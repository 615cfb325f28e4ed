"""Batches that grow: Megatron-LM's sizes, plain PyTorch's weights, and a run that is resumed."""

from fractions import Fraction
from itertools import islice
from math import cos, pi
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from setpoint.config.composition import compose
from setpoint.config.resolving.checks import verify
from setpoint.plan.curve import draw_curve
from setpoint.plan.preflight import preflight
from setpoint.train.batch_ramp import stages_of
from setpoint.train.build.components import build_components
from setpoint.train.build.job_data import phases_of
from setpoint.train.config import Job
from setpoint.train.position import Position, share_done
from setpoint.train.run import train

from ..support.snapshots import compare, refused
from .rules.refusals import refusals
from .small import Steps, loop_of, small_job, train_rows

LENGTH = 16
BATCH = ("micro_size", "accumulation")
RAMP = "batch.ramp={start: 2, increment: 2, over: 170 tokens}"
GROWING = ("batch.global_size=8", RAMP, f"batch.sequence_length={LENGTH}", "duration=6 steps")
SIZES = [2, 2, 4, 6, 8, 8]
"""Of the steps of GROWING: sizes change behind 3.5, 7.1 and 10.6 sequences."""


def growing(folder: Path, *flags: str) -> Job:
    given = (*GROWING, "model.dropout=0", "evaluation=null", *flags)
    return small_job(folder, *given, without=BATCH)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(1, 700))
def test_sizes_are_those_of_megatron(start: int, increment: int, parts: int, samples: int) -> None:
    """core/num_microbatches_calculator.py: the size follows from the samples before the step."""
    final = start + parts * increment
    stages = stages_of(start, increment, 7 * samples, 7, final)
    consumed = step = 0
    while consumed <= 2 * samples:
        size = final
        if consumed <= samples:
            size = start + int(consumed / Fraction(samples, parts)) * increment
        stage = [stage for stage in stages if stage.step <= step][-1]
        assert stage.size == size
        assert stage.sequences + (step - stage.step) * stage.size == consumed
        consumed, step = consumed + size, step + 1
    sizes = [stage.size for stage in stages]
    assert sizes == sorted(set(sizes)) and sizes[-1] == final


def test_sizes_by_steps() -> None:
    assert stages_of(1, 1, 10, None, 4) == ((0, 0, 1), (4, 4, 2), (7, 10, 3), (10, 19, 4))
    assert stages_of(1, 1, 1, None, 4) == ((0, 0, 1), (1, 1, 4))


@given(st.integers(0, 30))
def test_steps_and_sequences_are_inverse(step: int) -> None:
    batch = compose(Job, flags=GROWING).resolve().batch
    before = batch.sequences_before(step)
    assert batch.steps_for(before) == step < batch.steps_for(before + 1) <= step + 1
    assert batch.sequences_before(step + 1) - before == batch.size_at(step)
    assert batch.accumulation_at(step) * batch.micro_size == batch.size_at(step)


def test_steps_of_a_ramp_count_by_their_sequences(tmp_path: Path) -> None:
    """For the time that is left, and the training between two evaluations."""
    job = compose(Job, flags=GROWING).resolve()
    shares = [share_done(job.duration, Position(step), job.batch) for step in range(7)]
    assert shares == [sum(SIZES[:step]) / sum(SIZES) for step in range(7)]
    flags = (*GROWING, "data.held_out=30", "evaluation.sequences=60", "evaluation.every=2 steps")
    (caution,) = (
        caution
        for caution in verify(small_job(tmp_path, *flags, without=BATCH), ("files",)).cautions
        if caution.code == "evaluation-longer-than-training"
    )
    assert f" and {2 * sum(SIZES) / 6 * LENGTH:.0f} are trained" in caution.message


@pytest.mark.parametrize("workers", [0, 1])
def test_each_stage_is_trained_as_plain_torch_trains_it(tmp_path: Path, workers: int) -> None:
    """Runs of a constant batch each, one after the other, on the rows of a constant batch."""
    flags = ("optimizer.clip_norm=null", "optimizer.weight_decay=0", "precision.compute=fp32",
             "schedule=constant", "schedule.warmup=0")  # fmt: skip
    job = growing(tmp_path, *flags, f"data.loader.workers={workers}")
    steps = Steps()
    loop = loop_of(job, steps)
    assert (job.batch.micro_size, job.batch.accumulation) == (2, 4)
    plain = build_components(growing(tmp_path, *flags, "batch.ramp=null", "batch.micro_size=2"))
    twos = (batch for _ in range(4) for batch in plain.feed.take().batches)
    model: Any = plain.model
    lr, betas, eps = 1e-2, getattr(job.optimizer, "betas", ()), getattr(job.optimizer, "eps", 0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr, betas, eps, weight_decay=0)
    losses: list[float] = []
    for size in SIZES:
        batches = list(islice(twos, size // 2))
        inputs, targets = (
            torch.cat([getattr(batch, name) for batch in batches]) for name in ("inputs", "targets")
        )
        logits = model(inputs)
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    loop.run()
    assert [result.tokens for result in steps.seen] == [size * LENGTH for size in SIZES]
    assert [result.loss for result in steps.seen] == pytest.approx(losses, rel=1e-5)
    trained = loop.components.model.state_dict()
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(trained[name], weight, rtol=1e-4, atol=1e-5)


def test_a_run_resumed_in_the_middle_is_the_uninterrupted_one(tmp_path: Path) -> None:
    flags = ("schedule=constant", "model.dropout=0.1", "evaluation={every: 2 steps, sequences: 4}")
    whole = train(growing(tmp_path, *flags, "name=whole")).directory
    for steps, workers in ((2, 0), (3, 1), (6, 0)):
        more = (f"duration={steps} steps", f"data.loader.workers={workers}", "name=parts")
        parts = train(growing(tmp_path, *flags, *more)).directory
    keep, again = train_rows(whole), train_rows(parts)
    assert [row["tokens"] for row in again] == [32, 64, 128, 224, 352, 480]
    assert [row["loss"] for row in again] == [row["loss"] for row in keep]


def test_a_duration_in_tokens_ends_with_the_step_that_reaches_it(tmp_path: Path) -> None:
    for tokens, steps in ((224, 4), (225, 5), (352, 5), (353, 6), (480, 6), (481, 7)):
        job = growing(tmp_path, f"duration={tokens} tokens")
        assert job.total_steps() == steps
    loop = loop_of(growing(tmp_path, "duration=225 tokens"))
    loop.run()
    assert loop.position.step == 5


def test_steps_are_compared_with_tokens_on_resume(tmp_path: Path) -> None:
    """Four steps are 14 sequences, 224 tokens."""
    train(growing(tmp_path, "duration=4 steps", "schedule=constant"))
    with refused():
        train(growing(tmp_path, "duration=223 tokens", "schedule=constant"))
    run = train(growing(tmp_path, "duration=225 tokens", "schedule=constant"))
    assert run.final_position.step == 5


def test_by_tokens_the_rate_is_that_of_steps(tmp_path: Path) -> None:
    """Rows are full, so that tokens move along the curve as steps do, bit for bit."""
    job = growing(tmp_path, "schedule={type: cosine, warmup: 2, horizon: 5, by: tokens}")
    loop_of(job, steps := Steps()).run()
    factor = job.schedule.build()
    assert [result.lr for result in steps.seen] == [1e-2 * factor(step) for step in range(6)]


@pytest.mark.parametrize("unit", ["tokens", "epochs"])
def test_rates_follow_the_rows_before_a_step(tmp_path: Path, unit: str) -> None:
    warmup, horizon = (50, 400) if unit == "tokens" else (0.02, 0.15)
    curve = f"{{type: cosine, warmup: {warmup} {unit}, horizon: {horizon} {unit}, floor: 0}}"
    job = growing(tmp_path, f"schedule={curve}")
    loop = loop_of(job, steps := Steps())
    loop.run()
    epoch_rows = loop.components.train_data.epoch_rows
    assert epoch_rows is not None
    rate, begin, expected = LENGTH if unit == "tokens" else 1 / epoch_rows, 0.0, list[float]()
    for size in SIZES:
        end = begin + size * rate
        t = min(1.0, (begin - warmup) / (horizon - warmup))
        rising = min(1.0, end / warmup)
        expected.append(rising if begin < warmup else (1 + cos(pi * t)) / 2)
        begin = end
    assert [result.lr / 1e-2 for result in steps.seen] == pytest.approx(expected, abs=1e-12)
    if unit == "tokens":
        drawn = [point.factor for point in draw_curve(job, every=1).points]
        assert drawn == pytest.approx(expected, abs=1e-12)


def test_a_phase_starts_with_the_rows_of_its_step(tmp_path: Path) -> None:
    sources = (
        "data.sources=[{type: random, name: a, weight: 1}, {type: random, name: b, weight: 0}]"
    )
    for start in ("3 steps", "100 tokens", "128 tokens"):
        job = growing(tmp_path, sources, f"data.anneal={{start: {start}, weights: {{b: 1}}}}")
        assert [phase.first for phase in phases_of(job)] == [0, 8]


REFUSED: dict[str, tuple[str, ...]] = {
    "a start that is no multiple": (*GROWING, "batch.ramp.start=3", "batch.micro_size=2"),
    "a start above the size": (*GROWING, "batch.ramp.start=8"),
    "an increment that is no multiple": (
        *GROWING, "batch.ramp.increment=1", "batch.micro_size=1", "parallel.world_size=2",
    ),
    "an increment that misses the size": (*GROWING, "batch.ramp.increment=4", "batch.micro_size=2"),
    "thousands of sizes": (
        "batch.global_size=40000002", "batch.ramp={start: 2, increment: 2, over: 9 steps}",
    ),
    "a time": (*GROWING, "batch.ramp.over=9 min"),
    "too few micro-batches for stages": (
        *GROWING, "batch.micro_size=2", "parallel.world_size=2", "parallel.pipeline=2",
        "model.layers=2",
    ),
    "only the start, which is less than a micro-batch of stages": (
        *GROWING, "batch.micro_size=2", "parallel.world_size=2", "parallel.pipeline=2",
        "model.layers=2", "batch.ramp.start=1",
    ),
    "DeepSpeed": (
        *GROWING, "parallel.world_size=2", "parallel.engine=deepspeed",
        "tracking.metrics.grad_norms=[]",
    ),
}  # fmt: skip


def test_refused(tmp_path: Path) -> None:
    compare("train/batch_ramp", refusals(tmp_path, REFUSED))


def test_check_shows_the_sizes(tmp_path: Path) -> None:
    assert preflight(growing(tmp_path)).facts["batch ramp"] == (
        "2 sequences, 4 after 2 steps, 6 after 3 steps, 8 after 4 steps"
    )
    job = growing(tmp_path, "batch.ramp={start: 1, increment: 1, over: 14 steps}")
    assert preflight(job).facts["batch ramp"] == (
        "1 sequence, 2 after 2 steps, ..., 8 after 14 steps"
    )
    assert [caution.code for caution in preflight(job).cautions] == ["ramp-longer-than-run"]
