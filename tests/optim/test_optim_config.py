import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from setpoint.config import ConfigError, Invalid, SetpointError, resolve
from setpoint.config.composition import compose
from setpoint.config.resolving.checks import verify
from setpoint.optim.config import (
    AdamWConfig,
    Group,
    ImportedOptimizer,
    MuonConfig,
    OptimizerConfig,
    SGDConfig,
    option_problems,
    read_options,
)
from setpoint.optim.grouping import group_problems

from ..support.snapshots import compare


def refused(**fields) -> dict[str, str]:
    with pytest.raises(ConfigError) as error:
        resolve(AdamWConfig(**fields))
    return {problem.path: problem.message for problem in error.value.problems}


def test_one_way_to_clip() -> None:
    assert resolve(AdamWConfig()).clip_norm == 1.0
    assert resolve(AdamWConfig(clip_value=0.5)).clip_norm is None
    assert resolve(AdamWConfig(clip_value=0.5, clip_norm=None)).clip_value == 0.5
    assert "contradicts clip_norm" in refused(clip_value=0.5, clip_norm=1.0)["clip_value"]


def test_rules_of_decay_without_decay() -> None:
    found = refused(weight_decay=0.0, no_decay=("norm",), no_decay_patterns=("a",))
    assert found.keys() == {"no_decay", "no_decay_patterns"}
    assert resolve(AdamWConfig(weight_decay=0.0, no_decay=()))


def test_a_pattern_that_is_none_is_one_problem() -> None:
    for pattern in ("(", ""):
        (path,) = refused(groups=[{"pattern": pattern}])
        assert path == "groups.0.pattern"
        with pytest.raises(ConfigError) as error:
            resolve(AdamWConfig(groups=[{"pattern": pattern}]))  # pyright: ignore[reportArgumentType]
        assert len(error.value.problems) == 1


def refuse_options(section: OptimizerConfig) -> dict[str, str]:
    with pytest.raises(ConfigError) as error:
        resolve(section)
    return {problem.path: f"{problem.message} | {problem.hint}" for problem in error.value.problems}


def test_values_are_read_by_the_fields() -> None:
    group = Group(pattern="a", options={"betas": [0.5, 0.6], "eps": 1})
    assert read_options(AdamWConfig(), group) == {"betas": (0.5, 0.6), "eps": 1.0}
    with pytest.raises(Invalid):
        read_options(AdamWConfig(), Group(pattern="a", options={"betas": [0.5, 1.5]}))


@pytest.mark.parametrize(
    ("options", "path", "words"),
    [
        ({"betas": [0.5, 1.5]}, "betas.1", "it must be >= 0, < 1"),
        ({"bets": [0.5, 0.6]}, "bets", "Did you mean betas?"),
        ({"beta1": 0.9}, "beta1", "Did you mean betas?"),
        ({"lr": 1.0}, "lr", "set lr_multiplier"),
        ({"weight_decay": 1.0}, "weight_decay", "set weight_decay_multiplier"),
        ({"clip_norm": 1.0}, "clip_norm", "is the same for all groups of type = adamw"),
    ],
)
def test_what_is_refused(options: dict[str, Any], path: str, words: str) -> None:
    found = refuse_options(AdamWConfig(groups=[Group(pattern="a", options=options)]))
    assert list(found) == [f"groups.0.options.{path}"]
    assert words in found[f"groups.0.options.{path}"]


def test_options_are_held_against_each_other() -> None:
    found = refuse_options(
        SGDConfig(momentum=0.0, groups=[Group(pattern="a", options={"nesterov": True})])
    )
    assert "needs momentum" in found["groups.0.options.nesterov"]
    fine = {"nesterov": True, "momentum": 0.5}
    assert resolve(SGDConfig(momentum=0.0, groups=[Group(pattern="a", options=fine)]))


def test_groups_without_an_effect() -> None:
    found = refuse_options(
        AdamWConfig(groups=[Group(pattern="b", lr_multiplier=2.0), Group(pattern="a")])
    )
    assert list(found) == ["groups.1.pattern"]
    assert "has no effect" in found["groups.1.pattern"]
    # Behind one that sets nothing another may come, which it keeps its parameters from.
    assert resolve(AdamWConfig(groups=[Group(pattern="a"), Group(pattern="b", lr_multiplier=2.0)]))
    found = refuse_options(
        AdamWConfig(weight_decay=0.0, groups=[Group(pattern="a", weight_decay_multiplier=2.0)])
    )
    assert "any multiple of weight_decay = 0 is 0" in found["groups.0.weight_decay_multiplier"]


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


@pytest.mark.parametrize(
    ("options", "path", "words"),
    [
        ({"bets": [0.5, 0.6]}, "bets", "has no parameter 'bets'"),
        ({"eps": "x"}, "eps", "is not a float"),
        ({"lr": 0.1}, "lr", "set lr_multiplier"),
    ],
)
def test_what_an_imported_optimizer_does_not_take(
    options: dict[str, Any], path: str, words: str
) -> None:
    with pytest.raises(ConfigError) as error:
        imported("torch.optim.Adam", options)
    (problem,) = error.value.problems
    assert problem.path == f"groups.0.options.{path}"
    assert words in problem.message


def on_meta() -> list[tuple[str, nn.Parameter]]:
    return [("w", nn.Parameter(torch.empty(2, device="meta")))]


def in_bf16() -> list[tuple[str, nn.Parameter]]:
    return [("w", nn.Parameter(torch.ones(2, dtype=torch.bfloat16)))]


def modes(given: Any) -> Any:
    fields = {"target": "torch.optim.LBFGS"}
    return compose(ImportedOptimizer, program=fields).resolve().build(parameters=given)


CASES: dict[str, Callable[[], Any]] = {
    "nesterov without momentum": lambda: resolve(SGDConfig(nesterov=True, momentum=0.0)),
    "nesterov with dampening": lambda: resolve(SGDConfig(nesterov=True, dampening=0.1)),
    "dampening without momentum": lambda: resolve(SGDConfig(dampening=0.1, momentum=0.0)),
    "muon's patterns": lambda: resolve(MuonConfig(adamw_patterns=("a(", ""))),
    "a vector for muon": lambda: resolve(MuonConfig()).build(parameters=on_meta()),
    "no fused AdamW": lambda: resolve(AdamWConfig(implementation="fused")).build(
        parameters=on_meta()
    ),
    "no fused SGD": lambda: resolve(SGDConfig(implementation="fused")).build(parameters=on_meta()),
    "no fused SGD in bf16": lambda: resolve(SGDConfig(implementation="fused")).build(
        parameters=in_bf16()
    ),
    "several losses": lambda: modes(in_bf16()),
}


def test_what_a_person_reads() -> None:
    lines: list[str] = []
    for name, refused in CASES.items():
        with pytest.raises((ConfigError, SetpointError)) as caught:
            refused()
        # Where this file says it is of no interest.
        words = re.sub(r"program \([^)]*\)", "program", str(caught.value))
        lines += [f"## {name}", words, ""]
    compare("optim/variants", "\n".join(lines))


def test_what_does_not_contradict_itself() -> None:
    # The default looks ahead, and is not a choice of the user's.
    assert resolve(MuonConfig(momentum=0.0)).nesterov
    assert not resolve(MuonConfig(momentum=0.0, nesterov=False)).nesterov
