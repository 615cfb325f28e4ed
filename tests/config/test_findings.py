"""What a check yields is held to its word."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from setpoint.config import Caution, Config, Problem, derive, derived, field, resolve, rule
from setpoint.config.composition import compose

from .helpers import problems_of


def _config(method: Callable[[Any], Any]) -> Config:
    class Checked(Config):
        x: int = 1
        items: list[int] = field(factory=list)
        _it = rule(method)

    return Checked()


def _raises(self: Any) -> Any:
    raise ValueError("nope")


def _writes(self: Any) -> Any:
    self.x = 33
    yield from ()


def _appends(self: Any) -> Any:
    self.items.append(33)
    yield from ()


def test_a_default_beside_a_value_that_was_given_is_called_one() -> None:
    class Inner(Config):
        given: int = 1
        left: int = 2

        @rule
        def _check(self) -> Iterator[Problem]:
            if self.given == 7:
                yield Problem("given", "bad", also=("left",))

    class Outer(Config):
        inner: Inner | None = None

        @rule
        def _check(self) -> Iterator[Problem]:
            if self.inner is not None and self.inner.given == 8:
                yield Problem("inner.given", "bad", also=("inner.left",))

    for value in (7, 8):
        flags = [f"inner.given={value}"]
        (problem,) = problems_of(lambda flags=flags: compose(Outer, flags=flags).resolve())
        assert problem.origin == "command line inner.given"
        assert problem.also == ("inner.left = 2 (default)",)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (lambda self: None, "'NoneType' object is not iterable"),
        (lambda self: Problem("x", "bad"), "'Problem' object is not iterable"),
        (lambda self: "bad", "yielded a str; it must yield a Problem for each finding"),
        (lambda self: self, "'Checked' object is not iterable"),
        (lambda self: ["bad"], "yielded a str; it must yield"),
        (_raises, "failed: ValueError: nope (tests/config/test_findings.py:"),
        (_writes, "Checked.x cannot be set: a resolved configuration is immutable"),
        (_appends, "Checked.items cannot be changed: a resolved configuration is immutable"),
        (
            lambda self: [Problem("xx", "bad")],
            "names 'xx': Checked has no such field. Did you mean x?",
        ),
        (lambda self: [Problem("x", "bad", also=("xx",))], "names 'xx'"),
        (lambda self: [Caution("c", "x", "bad")], "yielded the caution 'c' undeclared"),
    ],
)
def test_mistakes_name_the_method(method: Callable[[Any], Any], words: str) -> None:
    (problem,) = problems_of(lambda: resolve(_config(method)))
    assert words in problem.message
    assert "test_findings.py:" in problem.message


def test_a_check_that_is_right() -> None:
    assert resolve(_config(lambda self: ())).x == 1  # pyright: ignore[reportAttributeAccessIssue]
    found = problems_of(lambda: resolve(_config(lambda self: [Problem("x", "bad")])))
    assert [(problem.path, problem.message) for problem in found] == [("x", "bad")]


def test_a_deriving_method_only_reads() -> None:
    class Derived(Config):
        x: int = 1
        y: int = derived()
        z: int = derived()

        @derive("y")
        def _y(self) -> int:
            self.x = 3
            return 3

        @derive("z")
        def _z(self) -> int:
            return [][self.x]

    first, second = problems_of(lambda: resolve(Derived()))
    assert (
        "Derived._y (" in first.message
        and "Derived.x cannot be set in this method" in first.message
    )
    assert "Derived._z (" in second.message and "IndexError" in second.message
