"""Biases of routers move once per step, and the load of experts is counted over a fixed size."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from setpoint.config import fingerprint, resolve
from setpoint.precision.config import LossScale
from setpoint.precision.mixed_precision import LossScaler
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.loop import Callback, Loop
from setpoint.train.run import train
from setpoint.train.verdict import StepResult

from .small import Steps, loop_of, rows, small_job, train_rows

RATE = 0.0625  # sums of it are exact
SIGMOID = (
    "model.dim=16", "model.layers=2", "model.dropout=0",
    "model.moe={experts=4, expert_dim=16, balance_loss=0}",
    "model.moe.router={type=sigmoid_top_k, bias_rate=0.0625}",
)  # fmt: skip


def balanced(job: Job) -> tuple[list[Tensor], Tensor]:
    """The counts of all steps, and the biases at the end."""
    steps = Steps()
    loop = loop_of(job, steps)
    loop.run()
    state = loop.components.model.state_dict()
    counts = [step.routing.counts for step in steps.seen if step.routing is not None]
    return counts, torch.stack([t for name, t in state.items() if name.endswith("router.bias")])


def test_once_per_update_by_the_sign_of_the_error(tmp_path: Path) -> None:
    counts, biases = balanced(small_job(tmp_path, *SIGMOID, "duration=5 steps"))
    expected = torch.zeros(2, 4)
    for chosen in counts:
        expected += RATE * torch.sign(chosen.double().mean(1, keepdim=True) - chosen)
    assert len(counts) == 5 and torch.equal(biases, expected) and biases.any()


def test_evaluation_does_not_count(tmp_path: Path) -> None:
    flags = (*SIGMOID, "duration=6 steps", "model.moe.capacity_factor=1.0")
    often = train(small_job(tmp_path, *flags, "evaluation.every=1 steps", "name=often"))
    never = train(small_job(tmp_path, *flags, "evaluation=null", "name=never"))
    state, other = often.components.model.state_dict(), never.components.model.state_dict()
    assert all(torch.equal(tensor, other[name]) for name, tensor in state.items())
    trained = train_rows(often.directory)
    assert trained == rows(never.directory)
    assert any(row["expert_drops"] > 0 for row in trained)


def test_what_the_model_adds_to_the_loss(tmp_path: Path) -> None:
    """The mean over layers of a term, times layers and weight; the cross-entropy is apart."""
    moe = "model.moe={experts=4, balance_loss=0.5, sequence_balance_loss=0.25, router_z_loss=0.125}"
    job = small_job(tmp_path, moe, "model.layers=2", "duration=3 steps", "evaluation=null")
    for row in rows(train(job).directory):
        terms = (row["balance_loss"], row["sequence_balance_loss"], row["router_z_loss"])
        added = sum(
            2 * term * weight for term, weight in zip(terms, (0.5, 0.25, 0.125), strict=True)
        )
        assert row["loss"] == pytest.approx(row["cross_entropy"] + added, abs=1e-5)
        assert added > 0.7


def test_a_skipped_update_moves_no_biases(tmp_path: Path) -> None:
    job = small_job(tmp_path, *SIGMOID, "duration=2 steps")
    components, counts = build_components(job), list[StepResult]()
    components.scaler = LossScaler("cpu", resolve(LossScale(initial=2.0**127, backoff=2.0**-100)))
    before = {name: tensor.clone() for name, tensor in components.model.state_dict().items()}

    class Updates(Callback):
        def after_step(self, loop: Loop, result: StepResult) -> None:
            counts.append(result)
            if result.routing is None:
                now = components.model.state_dict()
                assert all(torch.equal(now[name], before[name]) for name in before)

    loop_of(job, Updates(), components=components).run()
    assert [result.routing is None for result in counts] == [True, False]
    assert components.scaler.metrics() == {"loss_scale": 2.0**27, "skipped_steps": 1}
    now = components.model.state_dict()
    moved = {name for name in before if not torch.equal(now[name], before[name])}
    assert any(name.endswith("router.bias") for name in moved)
    # The position goes on, and with it the learning rate.
    assert counts[1].lr < counts[0].lr


EXPERTS = (
    "model.moe={experts=4, expert_dim=8, capacity_factor=1.0, gradient_scale=true}",
    "model.dropout=0", "duration=8 steps", "evaluation=null", "checkpoint.every=never",
)  # fmt: skip


def losses_of(job: Job) -> list[float]:
    return [row["loss"] for row in train_rows(train(job).directory)]


def test_another_micro_size_is_another_run_or_the_same_one(tmp_path: Path) -> None:
    small = small_job(tmp_path, *EXPERTS)
    sizes = ("batch.micro_size=4", "batch.accumulation=1")
    other = small_job(tmp_path, *EXPERTS, *sizes, "name=other")
    same = small_job(tmp_path, *EXPERTS, *sizes, "model.moe.load_sequences=2", "name=same")
    assert fingerprint(small) == fingerprint(same) != fingerprint(other)
    found = losses_of(small)
    assert losses_of(same) == pytest.approx(found, rel=1e-5)
    assert losses_of(other) != pytest.approx(found, rel=1e-3)
