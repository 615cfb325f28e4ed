from typing import Any

import pytest

from setpoint.config import ConfigError, Invalid, resolve
from setpoint.config.composition import compose
from setpoint.config.resolving.checks import verify
from setpoint.optim.config import (
    AdafactorConfig,
    AdamWConfig,
    AnyPrecisionAdamWConfig,
    Group,
    ImportedOptimizer,
    LionConfig,
    MuonConfig,
    OptimizerConfig,
    ScheduleFreeAdamWConfig,
    SGDConfig,
    known_options,
    option_problems,
    read_options,
)
from setpoint.optim.grouping import group_problems


def refused(section: OptimizerConfig) -> dict[str, str]:
    with pytest.raises(ConfigError) as error:
        resolve(section)
    return {problem.path: f"{problem.message} | {problem.hint}" for problem in error.value.problems}


@pytest.mark.parametrize(
    ("section", "known"),
    [
        (AdamWConfig(), {"betas", "eps", "amsgrad", "cautious_weight_decay"}),
        (SGDConfig(), {"momentum", "dampening", "nesterov"}),
        (LionConfig(), {"betas", "cautious_weight_decay"}),
        (
            MuonConfig(),
            {"momentum", "nesterov", "steps", "adjust_lr", "betas", "eps", "cautious_weight_decay"},
        ),
        (ScheduleFreeAdamWConfig(), {"betas", "eps", "lr_power", "step_power"}),
        (AnyPrecisionAdamWConfig(), {"betas", "eps", "rounding", "cautious_weight_decay"}),
        (AdafactorConfig(), {"beta2_decay", "eps1", "eps2", "clip_threshold"}),
    ],
)
def test_what_may_differ_between_groups(section: OptimizerConfig, known: set[str]) -> None:
    assert set(known_options(section)) == known


def test_values_are_read_by_the_fields() -> None:
    group = Group(pattern="a", options={"betas": [0.5, 0.6], "eps": 1})
    assert read_options(AdamWConfig(), group) == {"betas": (0.5, 0.6), "eps": 1.0}
    with pytest.raises(Invalid):
        read_options(AdamWConfig(), Group(pattern="a", options={"betas": [0.5, 1.5]}))


@pytest.mark.parametrize(
    ("options", "path", "words"),
    [
        ({"betas": [0.5, 1.5]}, "betas.1", "it must be >= 0, < 1"),
        ({"betas": 0.5}, "betas", "0.5"),
        ({"eps": 0}, "eps", "it must be > 0"),
        ({"bets": [0.5, 0.6]}, "bets", "Did you mean betas?"),
        ({"beta1": 0.9}, "beta1", "Did you mean betas?"),
        ({"lr": 1.0}, "lr", "set lr_multiplier"),
        ({"weight_decay": 1.0}, "weight_decay", "set weight_decay_multiplier"),
        ({"params": "x"}, "params", "set pattern"),
        ({"clip_norm": 1.0}, "clip_norm", "is the same for all groups of type = adamw"),
        ({"implementation": "loop"}, "implementation", "is the same for all groups"),
    ],
)
def test_what_is_refused(options: dict[str, Any], path: str, words: str) -> None:
    found = refused(AdamWConfig(groups=[Group(pattern="a", options=options)]))
    assert list(found) == [f"groups.0.options.{path}"]
    assert words in found[f"groups.0.options.{path}"]


def test_options_are_held_against_each_other() -> None:
    found = refused(
        SGDConfig(momentum=0.0, groups=[Group(pattern="a", options={"nesterov": True})])
    )
    assert "needs momentum" in found["groups.0.options.nesterov"]
    fine = {"nesterov": True, "momentum": 0.5}
    assert resolve(SGDConfig(momentum=0.0, groups=[Group(pattern="a", options=fine)]))


def test_groups_without_an_effect() -> None:
    found = refused(AdamWConfig(groups=[Group(pattern="b", lr_multiplier=2.0), Group(pattern="a")]))
    assert list(found) == ["groups.1.pattern"]
    assert "has no effect" in found["groups.1.pattern"]
    # Behind one that sets nothing another may come, which it keeps its parameters from.
    assert resolve(AdamWConfig(groups=[Group(pattern="a"), Group(pattern="b", lr_multiplier=2.0)]))
    found = refused(
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
