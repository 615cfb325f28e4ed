"""Defaults are read like values that are set: converted, checked, and refused in words."""

import enum
from pathlib import Path
from typing import Any, Literal, cast

import pytest

import setpoint as sp
from setpoint.config import Config, SetpointError, field, ref, resolve
from setpoint.config.record.record import fingerprint

from ...support.snapshots import refused


class Color(enum.Enum):
    RED = 1


class Section(Config):
    width: int = 1


class Family(Config):
    pass


class Member(Family, type="member"):
    pass


class Right(Config):
    rate: float = 1
    path: Path = "a/b"  # pyright: ignore[reportAssignmentType]
    period: sp.Period = "3 steps"  # pyright: ignore[reportAssignmentType]
    token: sp.Secret = "env:TOKEN"  # pyright: ignore[reportAssignmentType]
    zero: float = -0.0
    color: Color = "RED"  # pyright: ignore[reportAssignmentType]
    pair: tuple[float, float] = (1, 2)
    items: list[float] = field(factory=lambda: [1, 2])
    section: Section = field(factory=cast(Any, lambda: {"width": 3}))
    member: Family = field(factory=cast(Any, lambda: "member"))


def test_defaults_are_what_the_same_values_would_be() -> None:
    values: dict[str, Any] = {
        "rate": 1, "path": "a/b", "period": "3 steps", "token": "env:TOKEN", "zero": -0.0,
        "color": "RED", "pair": (1, 2), "items": [1, 2], "section": {"width": 3},
        "member": "member",
    }  # fmt: skip
    usual, given = resolve(Right()), resolve(Right(**values))
    assert usual == given
    assert fingerprint(usual) == fingerprint(given)
    for name in values:
        assert type(getattr(usual, name)) is type(getattr(given, name)), name
        assert repr(getattr(Right(), name)) == repr(getattr(Right(**values), name)), name


def wrong(kind: object, **options: Any) -> type[Config]:
    """A class with one field."""
    namespace = {
        "__module__": __name__,
        "__qualname__": "Wrong",
        "__annotations__": {"x": kind},
        "x": field(**options),
    }
    meta: Any = type(Config)
    return meta("Wrong", (Config,), namespace)


WRONG: dict[str, tuple[object, dict[str, Any]]] = {
    "range": (int, {"default": 0, "ge": 1}),
    "credential": (str, {"default": "https://a:hunter2@x.y"}),
    "word": (Literal["a", "b"], {"default": "c"}),
    "null": (int, {"default": None}),
    "whole": (int, {"default": 1.0}),
    "truth": (int, {"default": True}),
    "nan": (float, {"default": float("nan")}),
    "pattern": (str, {"default": "a b", "pattern": "[a-z]+"}),
    "items": (list[int], {"factory": lambda: ["a"]}),
    "item_range": (tuple[int, ...], {"default": (1, 0), "item_ge": 1}),
    "secret": (sp.Secret, {"default": "hunter2secret"}),
    "object": (Any, {"default": print}),
    "no_section": (Section, {"factory": lambda: None}),
    "other_section": (Section, {"factory": Member}),
    "family": (Family, {"factory": Family}),
    "reference": (int, {"default": ref("z * 2")}),
    "reference_text": (str, {"default": "${z}"}),
    "reference_item": (list[int], {"factory": lambda: ["${z}"]}),
    "shared_list": (list[int], {"default": (1, 2)}),
    "shared_section": (Family, {"default": "member"}),
}


@pytest.mark.parametrize("name", WRONG)
def test_defaults_that_do_not_fit_are_refused(name: str) -> None:
    kind, options = WRONG[name]
    cls: Any = wrong(kind, **options)
    with pytest.raises(TypeError):
        _ = cls().x
    with refused(TypeError) as caught:
        resolve(cls())
    assert isinstance(caught.value, SetpointError)


def test_a_default_beside_a_factory_is_refused() -> None:
    with refused(TypeError):
        wrong(int, default=3, factory=int)
