"""Exact resume with each optimizer: a run that is stopped and goes on equals one that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from setpoint.optim.anyprecision import AnyPrecisionAdamW
from setpoint.train.build import build_parts
from setpoint.train.run import train

from .small import assert_same_run, small_job

BF16 = ("precision.params=bf16", "precision.compute=bf16")
STATE = "precision.optimizer_state=bf16"
FREE = ("optimizer=schedule_free_adamw", "optimizer.lr=1e-2")
EXPERTS = ("model.moe.experts=4", "model.moe.expert_dim=16")
VARIANTS = {
    "adamw": (),
    "adamw, foreach": ("optimizer.implementation=foreach",),
    "adamw, amsgrad": ("optimizer.amsgrad=true", "optimizer.implementation=loop"),
    "sgd": ("optimizer=sgd", "optimizer.nesterov=true"),
    "lion": ("optimizer=lion", "optimizer.lr=1e-3"),
    "lion with bf16 state": ("optimizer=lion", STATE),
    "muon": ("optimizer=muon", "optimizer.adamw_lr=1e-3"),
    "muon with bf16 state and experts": ("optimizer=muon", STATE, *EXPERTS),
    "schedule-free": FREE,
    "schedule-free with groups": (*FREE, 'optimizer.groups=[{pattern="^layers", lr_multiplier=2}]'),
    "schedule-free in bf16": (*FREE, *BF16),
    "schedule-free with masters": (*FREE, *BF16, "precision.master=fp32"),
    "any precision": ("optimizer=anyprecision_adamw", *BF16),
    "any precision with fp32 weights": ("optimizer=anyprecision_adamw", STATE),
    "adafactor": ("optimizer=adafactor",),
    "imported": ("optimizer={type=import, target=torch.optim.NAdam}",),
}
COMMON = (
    "schedule={type=constant, warmup_steps=2}",
    "evaluation.every=1 steps",
    "checkpoint.every=2 steps",
)


def test_the_noise_of_rounding_is_that_of_the_seed_of_the_job(tmp_path: Path) -> None:
    """And not of a rank, whose generators are seeded otherwise: copies of a weight stay copies."""
    noise = []
    for seed in (3, 4):
        job = small_job(tmp_path / str(seed), f"seed={seed}", *VARIANTS["any precision"])
        optimizer = build_parts(job).optimizer
        assert isinstance(optimizer, AnyPrecisionAdamW)
        noise.append(optimizer.seed)
    assert noise == [3, 4]


@pytest.mark.parametrize("name", VARIANTS)
def test_stopped_runs_go_on_as_if_nothing_had_been(name: str, tmp_path: Path) -> None:
    flags = (*COMMON, *VARIANTS[name])
    oracle = train(small_job(tmp_path / "oracle", "duration=6 steps", *flags)).directory
    for end in (3, 4, 6):
        job = small_job(tmp_path / "stopped", f"duration={end} steps", *flags)
        stopped = train(job).directory
    assert_same_run(stopped, oracle)
