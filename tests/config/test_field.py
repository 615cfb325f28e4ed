"""Ranges and defaults of fields."""

from typing import Any, Literal

import pytest

from setpoint.config import Config, ConfigError, Free, Invalid, field
from setpoint.config.schema.field import Bounds

from ..support.snapshots import refused
from .sample import Batch


@pytest.mark.parametrize(
    ("bounds", "inside", "outside", "words"),
    [
        (Bounds(gt=0), (1, 0.1), (0, -1), "> 0"),
        (Bounds(ge=0, lt=1), (0, 0.5), (1, -0.1), ">= 0, < 1"),
        (Bounds(le=3), (3,), (3.5,), "<= 3"),
        (Bounds(pattern="a+"), ("aa", 3), ("ab", ""), "matching a+"),
    ],
)
def test_values_outside_the_range_are_refused(
    bounds: Bounds, inside: tuple[Any, ...], outside: tuple[Any, ...], words: str
) -> None:
    for value in inside:
        bounds.check(value)
    for value in outside:
        with refused(Invalid):
            bounds.check(value)
    assert bounds.describe() == words


def test_limits_say_nothing_about_words_and_null() -> None:
    class Root(Config):
        size: int | Literal["auto"] | None = field(default="auto", ge=1)
        sizes: tuple[float | None, ...] = field(default=(), item_gt=0)

    root = Root(size=None, sizes=(None, 1))
    root.size = "auto"
    assert root.sizes == (None, 1.0)
    for name, value in (("size", 0), ("sizes", [1, 0])):
        with refused(ConfigError):
            setattr(root, name, value)


def test_defaults_are_never_shared() -> None:
    template = Batch(size=3)

    class Root(Config):
        batches: tuple[Batch, ...] = field(factory=lambda: (template,))
        single: Batch = field(factory=lambda: template)
        names: list[str] = field(factory=lambda: ["a"])

    first, second = Root(), Root()
    first.batches[0].size = 9
    first.single.size = 8
    first.names.append("b")
    assert (second.batches[0].size, second.single.size, second.names) == (3, 3, ["a"])
    assert template.size == 3


@pytest.mark.parametrize(
    ("kind", "default"),
    [(list[int], []), (dict[str, int], {}), (Batch, Batch()), (tuple[Batch], (Batch(),)),
     (Free, Free())],
)  # fmt: skip
def test_a_mutable_default_is_refused(kind: object, default: object) -> None:
    body = {"__annotations__": {"x": kind}, "__module__": __name__, "__qualname__": "Root"}
    cls: Any = type(Config)("Root", (Config,), {**body, "x": default})
    with refused(TypeError):
        _ = cls().x


def test_a_range_that_asks_for_a_finite_number() -> None:
    bounds = Bounds(gt=0, lt=float("inf"))
    assert bounds.describe() == "> 0, finite"
    bounds.check(1e300)
    with refused(Invalid):
        bounds.check(float("inf"))
    Bounds(gt=0).check(float("inf"))


def test_a_text_of_the_wrong_form_is_answered_with_an_example() -> None:
    bounds = Bounds(pattern=r"[a-z\-]+")
    with refused(Invalid):
        bounds.check("my set!")
    with refused(Invalid):
        bounds.check("MY SET")  # nothing near it would do
