from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from setpoint.config import ConfigError, SetpointError, resolve
from setpoint.config.composition import compose
from setpoint.config.resolving.checks import verify
from setpoint.optim.config import (
    AdamWConfig,
    Group,
    ImportedOptimizer,
    MuonConfig,
    SGDConfig,
    option_problems,
    read_options,
)
from setpoint.optim.grouping import group_problems

from ..support.snapshots import refused


def test_one_way_to_clip() -> None:
    assert resolve(AdamWConfig()).clip_norm == 1.0
    assert resolve(AdamWConfig(clip_value=0.5)).clip_norm is None
    assert resolve(AdamWConfig(clip_value=0.5, clip_norm=None)).clip_value == 0.5
    with refused(ConfigError):
        resolve(AdamWConfig(clip_value=0.5, clip_norm=1.0))


def test_rules_of_decay_without_decay() -> None:
    with refused(ConfigError):
        resolve(AdamWConfig(weight_decay=0.0, no_decay=("norm",), no_decay_patterns=("a",)))
    assert resolve(AdamWConfig(weight_decay=0.0, no_decay=()))


@pytest.mark.parametrize("pattern", ["(", ""], ids=["invalid", "empty"])
def test_an_invalid_pattern_is_one_problem(pattern: str) -> None:
    with refused(ConfigError) as caught:
        resolve(AdamWConfig(groups=[Group(pattern=pattern)]))
    assert len(caught.value.problems) == 1


def test_values_are_read_by_the_fields() -> None:
    group = Group(pattern="a", options={"betas": [0.5, 0.6], "eps": 1})
    assert read_options(AdamWConfig(), group) == {"betas": (0.5, 0.6), "eps": 1.0}


@pytest.mark.parametrize(
    "options",
    [
        {"betas": [0.5, 1.5]}, {"bets": [0.5, 0.6]}, {"beta1": 0.9}, {"lr": 1.0},
        {"weight_decay": 1.0}, {"clip_norm": 1.0},
    ],
    ids=" ".join,
)  # fmt: skip
def test_invalid_options(options: dict[str, Any]) -> None:
    with refused(ConfigError):
        resolve(AdamWConfig(groups=[Group(pattern="a", options=options)]))


def test_options_are_held_against_each_other() -> None:
    with refused(ConfigError):
        options = {"nesterov": True}
        resolve(SGDConfig(momentum=0.0, groups=[Group(pattern="a", options=options)]))
    fine = {"nesterov": True, "momentum": 0.5}
    assert resolve(SGDConfig(momentum=0.0, groups=[Group(pattern="a", options=fine)]))


def test_groups_without_an_effect() -> None:
    other = Group(pattern="b", lr_multiplier=2.0)
    with refused(ConfigError):
        resolve(AdamWConfig(groups=[other, Group(pattern="a")]))
    # Behind one that sets nothing another may come, which it keeps its parameters from.
    assert resolve(AdamWConfig(groups=[Group(pattern="a"), other]))
    with refused(ConfigError):
        group = Group(pattern="a", weight_decay_multiplier=2.0)
        resolve(AdamWConfig(weight_decay=0.0, groups=[group]))


def imported(target: str, options: dict[str, Any]) -> ImportedOptimizer:
    groups = [{"pattern": "a", "options": options}]
    values = {"target": target, "groups": groups}
    return compose(ImportedOptimizer, program=values).resolve()


def test_those_of_an_imported_optimizer_by_its_signature() -> None:
    config = imported("torch.optim.Adam", {"betas": [0.5, 0.6]})
    assert read_options(config, config.groups[0]) == {"betas": (0.5, 0.6)}
    assert not verify(config).problems
    assert not list(option_problems(config))
    assert not list(group_problems(config))


@pytest.mark.parametrize("options", [{"bets": [0.5, 0.6]}, {"eps": "x"}, {"lr": 0.1}], ids=" ".join)
def test_invalid_options_of_an_imported_optimizer(options: dict[str, Any]) -> None:
    with refused(ConfigError):
        imported("torch.optim.Adam", options)


def on_meta() -> list[tuple[str, nn.Parameter]]:
    return [("w", nn.Parameter(torch.empty(2, device="meta")))]


def in_bf16() -> list[tuple[str, nn.Parameter]]:
    return [("w", nn.Parameter(torch.ones(2, dtype=torch.bfloat16)))]


def lbfgs() -> Any:
    fields = {"target": "torch.optim.LBFGS"}
    return compose(ImportedOptimizer, program=fields).resolve().build(parameters=in_bf16())


CASES: dict[str, Callable[[], Any]] = {
    "nesterov without momentum": lambda: resolve(SGDConfig(nesterov=True, momentum=0.0)),
    "nesterov with dampening": lambda: resolve(SGDConfig(nesterov=True, dampening=0.1)),
    "dampening without momentum": lambda: resolve(SGDConfig(dampening=0.1, momentum=0.0)),
    "patterns of muon": lambda: resolve(
        MuonConfig(adamw_patterns=("a(", ""), no_decay_patterns=("(",), frozen=("(",))
    ),
    "a vector for muon": lambda: resolve(MuonConfig()).build(parameters=on_meta()),
    "fused AdamW on meta": lambda: resolve(AdamWConfig(implementation="fused")).build(
        parameters=on_meta()
    ),
    "fused SGD on meta": lambda: resolve(SGDConfig(implementation="fused")).build(
        parameters=on_meta()
    ),
    "fused SGD in bf16": lambda: resolve(SGDConfig(implementation="fused")).build(
        parameters=in_bf16()
    ),
    "several losses": lbfgs,
}


@pytest.mark.parametrize("name", CASES)
def test_what_no_optimizer_supports(name: str) -> None:
    with refused((ConfigError, SetpointError)):
        CASES[name]()


def test_what_does_not_contradict_itself() -> None:
    # The default looks ahead, and is not a choice of the user's.
    assert resolve(MuonConfig(momentum=0.0)).nesterov
    assert not resolve(MuonConfig(momentum=0.0, nesterov=False)).nesterov
