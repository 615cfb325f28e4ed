"""An update in portions is the update of one large batch: gradients, norms and weights."""

from pathlib import Path

import pytest
import torch

from setpoint.train.build.components import Components, build_components
from setpoint.train.config import Job
from setpoint.train.verdict import StepResult

from .small import Steps, loop_of, small_job

# Sequences in a micro-batch, and micro-batches in an update.
PORTIONS = ((8, 1), (2, 4), (1, 8))
# The text has the bytes 32 to 39. What is left out lies unevenly, so that a mean of the
# micro-batches' means would be another number.
LEFT_OUT = "loss.token_weights={33: 0, 34: 0, 35: 3, 36: 0.25}"
EXPERTS = "model.moe={experts=4, expert_dim=16, sequence_balance_loss=0.1, router_z_loss=0.1, "
JOBS: dict[str, tuple[str, ...]] = {
    "dense": (),
    "z-loss and smoothing": ("loss.z_loss=1e-2", "loss.label_smoothing=0.1"),
    "left out": ("loss.ignore_index=33",),
    "weighed": (LEFT_OUT, "loss.z_loss=1e-2"),
    "chunked": ("loss=chunked_cross_entropy", "loss.chunk_size=24", LEFT_OUT),
    # The balance over a whole micro-batch is left to a test of its own, below.
    "experts": (EXPERTS + "balance_loss=0}", LEFT_OUT),
    "experts that are balanced by biases": (
        EXPERTS + "balance_loss=0, router={type=sigmoid_top_k, bias_rate=0.1}}",
        LEFT_OUT,
    ),
}


def job_of(tmp_path: Path, portion: tuple[int, int], *flags: str) -> Job:
    micro, accumulation = portion
    sizes = (f"batch.micro_size={micro}", f"batch.accumulation={accumulation}")
    return small_job(tmp_path, *sizes, "model.dropout=0", "duration=5 steps", *flags)


def accumulated(job: Job, dtype: torch.dtype) -> tuple[Components, float]:
    """The gradients of one update, left in the parameters, and its loss."""
    components = build_components(job)
    components.model.to(dtype)
    loop = loop_of(job, components=components)
    step = components.feed.take()
    sums = loop.engine.forward_backward(step, step.rank_total)
    return components, float(sums.losses[0])


def gradients(components: Components) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in components.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("name", "dtype"), [("dense", torch.float32), *((name, torch.float64) for name in JOBS)]
)
def test_gradients(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    tolerance = 3e-6 if dtype == torch.float32 else 1e-13
    found: list[dict[str, torch.Tensor]] = []
    losses: list[float] = []
    for portion in PORTIONS:
        job = job_of(tmp_path, portion, *JOBS[name])
        components, loss = accumulated(job, dtype)
        found.append(gradients(components))
        losses.append(loss)
    assert losses == pytest.approx([losses[0]] * len(PORTIONS), rel=1e-6)
    largest = max(float(gradient.abs().max()) for gradient in found[0].values())
    assert len(found[0]) > 5 and largest > 1e3 * tolerance
    for other in found[1:]:
        for parameter, gradient in found[0].items():
            torch.testing.assert_close(other[parameter], gradient, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["weighed", "experts that are balanced by biases"])
def test_a_run(tmp_path: Path, name: str) -> None:
    """Norms, clipping, the optimizer and what is counted, over five updates."""
    runs: list[tuple[list[StepResult], dict[str, torch.Tensor]]] = []
    for portion in PORTIONS[:2]:
        job = job_of(tmp_path, portion, *JOBS[name], "optimizer.clip_norm=0.3")
        components, updates = build_components(job), Steps()
        components.model.to(torch.float64)
        loop_of(job, updates, components=components).run()
        runs.append((updates.seen, components.model.state_dict()))
    (whole, theirs), (portions, ours) = runs
    assert len(whole) == 5 and whole[-1].loss < whole[0].loss
    for ours_at, theirs_at in zip(portions, whole, strict=True):
        assert (ours_at.tokens, ours_at.lr) == (theirs_at.tokens, theirs_at.lr)
        for field in ("loss", "cross_entropy", "grad_norm"):
            # The sums of the loss are fp32 whatever the model is.
            assert getattr(ours_at, field) == pytest.approx(getattr(theirs_at, field), rel=2e-6)
    for parameter, value in theirs.items():
        torch.testing.assert_close(ours[parameter], value, rtol=0, atol=1e-9)


def test_the_balance_of_experts_is_that_of_micro_batches(tmp_path: Path) -> None:
    """A product of means over tokens is not a sum over them: this term depends on the portions."""
    flags = ("model.moe={experts=4, expert_dim=16, balance_loss=0.1}",)
    losses = [
        accumulated(job_of(tmp_path, portion, *flags), torch.float64)[1] for portion in PORTIONS[:2]
    ]
    assert losses[0] != pytest.approx(losses[1], rel=1e-6)
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)
