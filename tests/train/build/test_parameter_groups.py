"""A model's parameters in groups: in the optimizer, in the loop, and in the record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from setpoint.config import SetpointError
from setpoint.resilience.signals import StopRequest
from setpoint.train.build.components import build_components
from setpoint.train.build.job_parameters import groups_of, rows_of, trained_parameters
from setpoint.train.loop import Loop
from setpoint.train.position import Position
from setpoint.train.run import train

from ..small import events, small_job

RULES = (
    'optimizer.groups=[{pattern="^embedding", lr_multiplier=0.25}, '
    '{pattern="query|key", weight_decay_multiplier=0, options={betas=[0.8, 0.9]}}]'
)


def test_without_rules_old_checkpoints_fit(tmp_path: Path) -> None:
    """What has two dimensions and more decays, as it did before there were kinds."""
    components = build_components(
        small_job(tmp_path, "model.norm=layer_norm", "model.qkv_bias=true")
    )
    decay, rest = components.optimizer.param_groups
    assert [decay["name"], rest["name"]] == ["decay", "no_decay"]
    named = list(components.model.named_parameters())
    assert decay["param_names"] == [name for name, p in named if p.ndim >= 2]
    assert rest["param_names"] == [name for name, p in named if p.ndim < 2]
    assert "lr_multiplier" not in decay


def test_mup_is_a_rule_of_the_model(tmp_path: Path) -> None:
    groups = build_components(small_job(tmp_path, "model.mup.base_dim=8")).optimizer.param_groups
    assert [group["name"] for group in groups] == ["decay", "decay x 0.5", "no_decay"]
    assert [group.get("lr_multiplier") for group in groups] == [None, 0.5, None]


def test_rates_of_mup_and_of_groups_are_multiplied(tmp_path: Path) -> None:
    flags = ("model.mup.base_dim=8", "optimizer.groups=[{pattern=query, lr_multiplier=3}]")
    groups = build_components(small_job(tmp_path, *flags)).optimizer.param_groups
    assert groups[-1]["param_names"] == ["layers.0.attention.query.weight"]
    assert groups[-1]["lr_multiplier"] == 1.5


def test_the_loop_multiplies_the_rate_of_the_schedule(tmp_path: Path) -> None:
    job = small_job(tmp_path, RULES, "schedule=constant", "schedule.warmup=0")
    components = build_components(job)
    result = Loop(job, components, [], StopRequest(), Position()).step()
    rates = {group["name"]: group["lr"] for group in components.optimizer.param_groups}
    assert result.lr == 0.01
    assert rates == {
        "decay": 0.01,
        "no_decay": 0.01,
        "/^embedding/ decay x 0.25": 0.0025,
        "/query|key/": 0.01,
    }


def test_a_rate_of_zero_leaves_parameters_alone(tmp_path: Path) -> None:
    flags = (
        'optimizer.groups=[{pattern="^embedding|norm", lr_multiplier=0}]',
        "duration=3 steps",
    )
    job = small_job(tmp_path, *flags)
    components = build_components(job)
    before = {name: p.detach().clone() for name, p in components.model.named_parameters()}
    Loop(job, components, [], StopRequest(), Position()).run()
    still = {n for n, p in components.model.named_parameters() if torch.equal(p, before[n])}
    assert still == {name for name in before if name.startswith("embedding") or "norm" in name}


def test_the_record_says_which_parameter_fell_into_which_group(tmp_path: Path) -> None:
    run = train(small_job(tmp_path, RULES, "duration=2 steps")).directory
    (start,) = events(run, "start")
    summary = [
        (row["name"], row["lr"], row["weight_decay"], row["options"], row["tensors"])
        for row in start["groups"]
    ]
    assert summary == [
        ("decay", 0.01, 0.1, {}, 6),
        ("no_decay", 0.01, 0.0, {}, 3),
        ("/^embedding/ decay x 0.25", 0.0025, 0.1, {}, 1),
        ("/query|key/", 0.01, 0.0, {"betas": [0.8, 0.9]}, 2),
    ]
    assert start["groups"][3]["names"] == [
        "layers.0.attention.query.weight",
        "layers.0.attention.key.weight",
    ]
    assert sum(row["parameters"] for row in start["groups"]) == sum(
        p.numel() for p in build_components(small_job(tmp_path)).model.parameters()
    )


class Slow(nn.Module):
    """Names a parameter that it has not."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 2))

    def learning_rate_multipliers(self) -> dict[str, float]:
        return {"wait": 0.5}


def test_parameters_that_are_trained(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 3))
    model[1].bias.requires_grad_(False)
    found = trained_parameters(model)
    assert [(each.name, each.kind, each.rate) for each in found] == [
        ("0.weight", "embedding", 1.0),
        ("1.weight", "matrix", 1.0),
    ]
    copies = {name: p.detach().double() for name, p in model.named_parameters()}
    for tensor in copies.values():
        tensor.requires_grad_()
    held: Any = trained_parameters(model, copies.items())
    assert all(each.tensor is copies[each.name] for each in held)
    config = small_job(tmp_path).optimizer
    assert [group["name"] for group in groups_of(config, model)] == ["decay"]
    assert [row.tensors for row in rows_of(config, model)] == [2]
    with pytest.raises(SetpointError, match="not there: wait"):
        trained_parameters(Slow())
