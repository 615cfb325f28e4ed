"""Checks of a class that stand as rows of a table in modules of their own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from setpoint.config import Caution, Config, ConfigError, Problem, Rule, resolve
from setpoint.config.resolving.checks import cautions_of, known_cautions, verify

from .helpers import problems_of

ELSEWHERE = "rules_that_stand_elsewhere"


def too_many(config: Pair) -> Iterator[Problem]:
    """A check as it stands in a module."""
    yield Problem("many", f"{config.many} are too many for {config.few}", also=("few",))


def odd(config: Pair) -> Iterator[Problem]:
    """A caution."""
    if config.few % 2:
        yield Caution("odd", "few", "is odd")


class Pair(
    Config,
    rules=(
        Rule(f"{ELSEWHERE}:too_many", "Whether", when=lambda c: c.many > c.few),
        Rule(f"{ELSEWHERE}:odd", "Whether few is even", cautions={"odd": "it is odd"}),
        Rule(f"{ELSEWHERE}:there", "Whether it is there", needs="files"),
        Rule(f"{ELSEWHERE}:why_idle", "Whether it is read", dead=("idle",)),
        Rule("rules_that_are_nowhere:any", "Never", when=lambda c: c.few == 77),
    ),
):
    many: int = 2
    few: int = 2
    idle: int = 0


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType(ELSEWHERE)
    module.__dict__.update(
        too_many=too_many,
        odd=odd,
        there=lambda config: [Problem("few", "is not there")],
        why_idle=lambda config: "few is 4" if config.few == 4 else None,
    )
    monkeypatch.setitem(sys.modules, ELSEWHERE, module)
    return module


def test_a_rule_reports_what_a_method_would() -> None:
    (problem,) = problems_of(lambda: resolve(Pair(many=5)))
    assert (problem.path, problem.message) == ("many", "5 are too many for 2")
    assert problem.also == ("few = 2 (default)",)
    assert [each.code for each in cautions_of(resolve(Pair(few=3)))] == ["odd"]
    assert known_cautions(Pair) == {"odd": "it is odd"}


def test_needs_are_named_and_met() -> None:
    pair = resolve(Pair())
    assert [str(each) for each in verify(pair, ()).skipped] == ["whether it is there (needs files)"]
    assert [each.path for each in verify(pair, {"files"}).problems] == ["few"]


def test_a_class_below_has_the_rules_and_more() -> None:
    class Below(Pair, rules=(Rule(f"{ELSEWHERE}:more", "More"),)):
        pass

    sys.modules[ELSEWHERE].__dict__["more"] = lambda config: [Problem("idle", "more")]
    assert [each.path for each in problems_of(lambda: resolve(Below(many=5)))] == ["idle", "many"]


def test_the_module_is_imported_where_there_is_something_to_look_at() -> None:
    assert resolve(Pair(few=6, many=1)).few == 6
    with pytest.raises(ConfigError, match=r"rules_that_are_nowhere:any failed: .*No module named"):
        resolve(Pair(few=77))


IN_A_MODULE = """
from setpoint.config import Problem, rule, dead
from os.path import exists


@rule(needs=lambda config: ("files",) if config.many > 2 else ())
def too_many(config):
    '''More than there are.'''
    if config.many > 1:
        yield Problem("many", "are too many")


@dead("idle")
def idle_is_dead(config):
    return "few is 4" if config.few == 4 else None


def unmarked(config):
    raise AssertionError("is not a check")
"""


def test_a_module_gives_its_marked_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("rules_of_a_module")
    exec(IN_A_MODULE, vars(module))
    monkeypatch.setitem(sys.modules, "rules_of_a_module", module)

    class Three(Config, rules=("rules_of_a_module",)):
        many: int = 1
        few: int = 2
        idle: int = 0

    class Four(Three):
        pass

    assert [each.path for each in problems_of(lambda: resolve(Four(many=2)))] == ["many"]
    assert [each.path for each in problems_of(lambda: resolve(Three(many=2)))] == ["many"]
    many = resolve(Three(many=3))
    assert [str(each) for each in verify(many, ()).skipped] == ["more than there are (needs files)"]
    assert [each.path for each in verify(many, {"files"}).problems] == ["many"]
    (problem,) = problems_of(lambda: resolve(Three(few=4, idle=1)))
    assert problem.message == "has no effect: few is 4"
