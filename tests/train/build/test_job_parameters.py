"""A model's parameters in groups: in the optimizer, in the loop, and in the record."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from setpoint.config import ConfigError, fingerprint
from setpoint.data.config import BYTES_VOCABULARY
from setpoint.plan.memory import update_memory
from setpoint.plan.preflight import preflight
from setpoint.plan.topology import Topology
from setpoint.plan.workload import Workload
from setpoint.train.build.components import build_components
from setpoint.train.build.job_parameters import gathered, groups_of, trained_parameters
from setpoint.train.build.job_parameters import trained as trained_of
from setpoint.train.loop import Callback, Loop
from setpoint.train.run import train
from setpoint.train.verdict import StepResult

from ...support.snapshots import refused
from ..small import events, loop_of, small_job

RULES = (
    'optimizer.groups=[{pattern="^embedding", lr_multiplier=0.25}, '
    '{pattern="query|key", weight_decay_multiplier=0, options={betas=[0.8, 0.9]}}]'
)


def test_rates_of_mup_and_of_groups_are_multiplied(tmp_path: Path) -> None:
    flags = ("model.mup.base_dim=8", "optimizer.groups=[{pattern=query, lr_multiplier=3}]")
    groups = build_components(small_job(tmp_path, *flags)).optimizer.param_groups
    assert [group["name"] for group in groups[:3]] == ["decay", "decay x 0.5", "no_decay"]
    assert groups[-1]["param_names"] == ["layers.0.attention.query.weight"]
    assert groups[-1]["lr_multiplier"] == 1.5


def test_the_loop_multiplies_the_rate_of_the_schedule(tmp_path: Path) -> None:
    job = small_job(tmp_path, RULES, "schedule=constant", "schedule.warmup=0")
    components = build_components(job)
    result = loop_of(job, components=components).step()
    rates = {group["name"]: group["lr"] for group in components.optimizer.param_groups}
    assert result.lr == 0.01
    assert rates == {
        "decay": 0.01,
        "no_decay": 0.01,
        "/^embedding/ decay x 0.25": 0.0025,
        "/query|key/": 0.01,
    }


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
    assert [len(group.parameters) for group in gathered(config, model)] == [2]
    with refused():
        trained_parameters(Slow())


FROZEN = "optimizer.frozen=['^embedding', query, router]"
DENSE = "optimizer.frozen=['^embedding', query]"
SIGMOID = ("model.moe.experts=4", "model.moe.router={type=sigmoid_top_k, bias_rate=0.1}")
CASES: dict[str, tuple[str, ...]] = {
    "masters": ("precision.params=bf16", "precision.compute=bf16", "precision.master=fp32"),
    "average": ("optimizer=schedule_free_adamw", "schedule=constant"),
    "experts": SIGMOID,
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_frozen_stays_through_a_run_and_its_resume(tmp_path: Path, case: str) -> None:
    pattern = FROZEN if case == "experts" else DENSE
    job = small_job(tmp_path, "evaluation=null", "duration=6 steps", *CASES[case], pattern)
    start = {n: t.clone() for n, t in build_components(job).model.state_dict().items()}
    whole = train(job, directory=tmp_path / "whole")
    run = tmp_path / "half"
    for until in (4, None):
        resumed = train(job, directory=run, until=until)
    assert resumed.started.step == 4
    found, again = whole.components.model.state_dict(), resumed.components.model.state_dict()
    names = {n for n, p in whole.components.model.named_parameters() if not p.requires_grad}
    assert names
    for name, tensor in found.items():
        assert torch.equal(tensor, again[name]), name
        if name in names or (case == "experts" and "router" in name):
            assert torch.equal(tensor, start[name]), name
        elif name in dict(whole.components.model.named_parameters()):
            assert not torch.equal(tensor, start[name]), name
    # Neither masters nor optimizer state are made or saved of them.
    state = json.loads((run / "checkpoints/step-00000006/state.json").read_text())
    assert not names & state["optimizer"]["parameters"].keys()
    assert not names & whole.components.weights.state().keys()
    assert all(p.grad is None for p in whole.components.model.parameters() if not p.requires_grad)


@pytest.mark.parametrize("flags", [("optimizer.weight_decay=0.5",), CASES["masters"]])
def test_what_is_frozen_for_a_while_stays_for_as_long(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    spans = "optimizer.frozen_spans=[{pattern='query|router', start=1, stop=3}]"
    common = (*SIGMOID, *flags, "evaluation=null", "schedule=constant", spans)
    components = build_components(small_job(tmp_path, *common, "duration=5 steps"))
    held = {n: t for n, t in components.model.state_dict().items() if "query" in n or "router" in n}
    seen: list[dict[str, torch.Tensor]] = []

    class Seen(Callback):
        def after_step(self, loop: Loop, result: StepResult) -> None:
            seen.append({name: tensor.clone() for name, tensor in held.items()})

    job = small_job(tmp_path, *common, "duration=5 steps")
    loop_of(job, Seen(), components=components).run()
    assert held
    for name in held:
        moved = [not torch.equal(*pair) for pair in zip(*(
            [each[name] for each in seen[first:][: len(seen) - 1]] for first in (0, 1)
        ), strict=False)]  # fmt: skip
        assert moved == [False, False, True, True], name
    # A step that it was left out of is none of its own.
    named: dict[torch.Tensor, str] = {p: name for name, p in components.weights.named_parameters()}
    steps = {named[p]: int(of["step"]) for p, of in components.optimizer.state.items()}
    assert {count for name, count in steps.items() if name in held} == {3}
    assert {count for name, count in steps.items() if name not in held} == {5}
    # A run that stops in the middle of it goes on as if it had not.
    for steps_of_run in (2, 5):
        done = train(
            small_job(tmp_path, *common, f"duration={steps_of_run} steps"), directory=tmp_path / "r"
        )
    found = done.components.model.state_dict()
    assert all(torch.equal(t, found[name]) for name, t in components.model.state_dict().items())


def test_spans_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    for span in (
        "{pattern=qwery, stop=2}",
        "{pattern=query, start=5, stop=5}",
        "{pattern=query}",
        "{pattern=query, stop=50 %}",
        "{pattern='.', start=2}",
    ):
        with refused(ConfigError):
            small_job(tmp_path, f"optimizer.frozen_spans=[{span}]")


def test_plans_count_what_is_trained(tmp_path: Path) -> None:
    plain, frozen = small_job(tmp_path), small_job(tmp_path, DENSE)
    components = build_components(frozen)
    numbers = sum(p.numel() for p in components.model.parameters())
    trained = sum(p.numel() for p in components.model.parameters() if p.requires_grad)
    listed = trained_of(frozen, BYTES_VOCABULARY)
    assert {each.name for each in listed} == {
        name for name, p in components.model.named_parameters() if p.requires_grad
    }
    plan, before = (
        update_memory(Workload.of(job, BYTES_VOCABULARY), Topology.of(job))
        for job in (frozen, plain)
    )
    assert (plan.weights, plan.gradients) == (4 * numbers, 4 * trained)
    assert plan.optimizer < before.optimizer
    # AdamW: two means, and the count of steps of each parameter.
    expected = 4 * (numbers + 3 * trained) + 4 * len(listed)
    assert plan.total == expected
    facts = preflight(frozen).facts
    assert (facts["parameters"], facts["trained parameters"]) == (numbers, trained)
    assert "trained parameters" not in preflight(plain).facts
    assert fingerprint(frozen) != fingerprint(plain)


def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    with refused(ConfigError):
        small_job(tmp_path, "optimizer.frozen=[qwery, norm]")
    with refused(ConfigError):
        small_job(tmp_path, "optimizer.frozen=[weight, '.']")
    # Of tied matrices there is one, under the name of the embedding.
    with refused(ConfigError):
        small_job(tmp_path, "model.tie_embeddings=true", "optimizer.frozen=['^output']")
    # A group that only frozen parameters would be in has nothing.
    with refused(ConfigError):
        group = "optimizer.groups=[{pattern=query, lr_multiplier=2}]"
        small_job(tmp_path, DENSE, group)
