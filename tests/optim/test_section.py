import pytest

from setpoint.config import ConfigError, resolve
from setpoint.optim.config import AdamWConfig, Group, MuonConfig, SGDConfig
from setpoint.shapes.patterns import pattern_problems


def test_whether_anything_depends_on_names() -> None:
    assert not AdamWConfig().has_patterns
    assert not MuonConfig().has_patterns
    assert AdamWConfig(no_decay_patterns=("a",)).has_patterns
    assert MuonConfig(adamw_patterns=("a",)).has_patterns
    assert AdamWConfig(groups=[Group(pattern="a")]).has_patterns


def test_whether_a_group_changes_anything() -> None:
    assert Group(pattern="a").changes_nothing
    assert not Group(pattern="a", lr_multiplier=2.0).changes_nothing
    assert not Group(pattern="a", weight_decay_multiplier=1.0).changes_nothing
    assert not Group(pattern="a", options={"eps": 1e-3}).changes_nothing


def test_patterns_are_regular_expressions() -> None:
    assert not list(pattern_problems("x", r"^a\.\d+$"))
    (empty,) = pattern_problems("x", "")
    assert "empty" in empty.message
    (broken,) = pattern_problems("x", "a(")
    assert "regular expression" in broken.message


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


@pytest.mark.parametrize("name", ["lr_multiplier", "weight_decay_multiplier"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_ranges_of_a_group(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        Group(pattern="a", **{name: value})


def test_who_keeps_anything() -> None:
    assert AdamWConfig().keeps_state and MuonConfig().keeps_state and SGDConfig().keeps_state
    assert not SGDConfig(momentum=0.0).keeps_state


def test_a_pattern_that_is_none_is_one_problem() -> None:
    for pattern in ("(", ""):
        (path,) = refused(groups=[{"pattern": pattern}])
        assert path == "groups.0.pattern"
        with pytest.raises(ConfigError) as error:
            resolve(AdamWConfig(groups=[{"pattern": pattern}]))  # pyright: ignore[reportArgumentType]
        assert len(error.value.problems) == 1
