"""Patterns on names, and the problems of those without effect."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.shapes.patterns import first_match, matches, pattern_problems, unmatched, untaken

NAMES = ["layers.0.query", "layers.0.key", "layers.1.query", "output"]
PATTERNS = st.lists(st.sampled_from(["query", "key", r"\.1\.", "layers", "^output$", "absent", ""]))


@given(PATTERNS)
def test_each_pattern_takes_a_name_or_is_reported(patterns: list[str]) -> None:
    taken = {first_match(patterns, name) for name in NAMES}
    problems = {problem.path for problem in untaken("rules", patterns, NAMES, "layers")}
    assert problems == {
        f"rules.{index}.pattern" for index in range(len(patterns)) if index not in taken
    }
    for name in NAMES:
        assert matches(patterns, name) == (first_match(patterns, name) is not None)


def test_a_pattern_is_unmatched_or_shadowed_by_those_before_it() -> None:
    absent, shadowed = untaken("rules", ["layers", "qury", "query"], NAMES, "layers")
    assert absent.message == "matches none of the 4 layers" and absent.hint == "Did you mean query?"
    assert absent.valid == ("layers.0.query", "layers.0.key", "output"), "layers are alike"
    assert shadowed.message.endswith("everything it matches, 2 of 4 layers")
    assert (shadowed.path, shadowed.also) == ("rules.2.pattern", ("rules.0.pattern",))
    assert not list(unmatched("list", ["layers", "query", "("], NAMES, "layers"))


@pytest.mark.parametrize("pattern", ["[[1]]", "[a--b]", "("])
def test_what_python_warns_about_is_refused(pattern: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (problem,) = pattern_problems("rules.0.pattern", pattern)
    assert "regular expression" in problem.message
