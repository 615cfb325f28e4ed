"""Class statements that cannot work are refused where they stand."""

from __future__ import annotations

import abc
import functools
import pickle
import types
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeVar

import pytest

from setpoint.config import (
    BUDGET,
    IDENTITY,
    RUNTIME,
    Config,
    SetpointError,
    dead,
    derive,
    derived,
    field,
    resolve,
)
from setpoint.config.composition import compose

from ..support.snapshots import refused
from .sample import SourceConfig

META: Any = type(Config)


def declare(
    annotations: Mapping[str, object], bases: tuple[type, ...] = (Config,), **body: Any
) -> Any:
    keywords = body.pop("keywords", {})
    namespace = {
        "__module__": __name__,
        "__qualname__": "Wrong",
        "__annotations__": dict(annotations),
        **body,
    }
    return META("Wrong", bases, namespace, **keywords)


def _nothing(self: Any) -> None:
    return None


class Limited(Config):
    """A base with a field that says much."""

    x: int = field(default=1, ge=0, le=10, role=RUNTIME, tags=("t",), environment="X_LIMIT")
    """Help of x."""

    rate: float = field(default=0.5, gt=0, role=BUDGET)
    many: list[int] = field(factory=list, item_ge=0, role=RUNTIME)
    twice: int = derived(ge=0)

    @derive("twice")
    def _derive_twice(self) -> int:
        return 2 * self.x


class Runner(Protocol):
    """What a config may be used as."""

    lr: float

    def run(self) -> int: ...


class Abstract(Config, abc.ABC):
    """A family that is not a variant itself."""

    lr: float = 0.1

    @abc.abstractmethod
    def run(self) -> int:
        """Whatever a variant does."""


T = TypeVar("T")
X = {"x": int}
WRONG: dict[str, dict[str, Any]] = {
    "range": {"annotations": X, "x": field(default=1, gt=5, lt=3)},
    "empty_range": {"annotations": X, "x": field(default=1, gt=5, le=5)},
    "item_range": {"annotations": X, "x": field(default=1, item_ge=5, item_le=4)},
    "tag_text": {"annotations": {}, "keywords": {"type": "a b.c"}},
    "tag_null": {"annotations": {}, "keywords": {"type": "null"}},
    "derive_unknown": {
        "annotations": {"x": int},
        "x": derived(),
        "f": derive("y")(lambda self: None),
    },
    "derive_plain": {"annotations": X, "x": 1, "f": derive("x")(lambda self: 1)},
    "derive_twice": {
        "annotations": X,
        "x": derived(),
        "f": derive("x")(lambda self: 1),
        "g": derive("x")(lambda self: 1),
    },
    "dead_unknown": {"annotations": X, "x": 1, "f": dead("y")(lambda self: None)},
    "post_init": {"annotations": X, "x": 1, "__post_init__": lambda self: None},
    "init": {"annotations": X, "x": 1, "__init__": lambda self: None},
    "word_setpoint": {"annotations": {"setpoint": int}, "setpoint": 1},
    "word_type": {"annotations": {"type": int}, "type": 1},
    "underscore": {"annotations": {"_x": int}, "_x": 1},
    "capitals": {"annotations": {"Lr": float, "lr": float}, "Lr": 1.0, "lr": 1.0},
    "no_type": {"annotations": {}, "x": 0.1},
    "inherited_no_type": {"annotations": {}, "bases": (Limited,), "x": 5},
    "inherited_range": {"annotations": X, "bases": (Limited,), "x": field(default=20, ge=15)},
    "inherited_property": {"annotations": {}, "bases": (Limited,), "x": property(_nothing)},
    "slots": {"annotations": X, "x": 1, "__slots__": ("y",)},
    "cached": {"annotations": X, "x": 1, "y": functools.cached_property(_nothing)},
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_declarations_are_refused(name: str) -> None:
    with refused(TypeError) as caught:
        declare(**WRONG[name])
    assert isinstance(caught.value, SetpointError)


def test_an_argument_that_a_field_does_not_have() -> None:
    words: Any = {"default_factory": list}
    with refused(TypeError):
        field(**words)


@pytest.mark.parametrize("default", [{"default": 1}, {"factory": list}])
def test_a_derived_field_has_no_default(default: Any) -> None:
    with refused(TypeError):
        derived(**default)


class Size(Config):
    width: int = field(default=1, ge=1)


class Rate(Config):
    lr: float = field(default=0.1, gt=0)
    twice: float = derived()

    @derive("twice")
    def _derive_twice(self) -> float:
        return 2 * self.lr


class Plain:
    unit: ClassVar[str] = "m"

    def area(self: Any) -> int:
        return self.width**2


class Mixed(Plain, Size, Rate):
    depth: int = 3


def test_classes_with_fields_can_be_mixed() -> None:
    draft = Mixed(width=4)
    draft.lr = 0.5
    config = resolve(draft)
    assert (config.width, config.lr, config.twice, config.depth) == (4, 0.5, 1.0, 3)
    assert config.area() == 16
    assert list(Mixed.__setpoint__.fields) == ["lr", "twice", "width", "depth"]
    assert isinstance(config, Size) and isinstance(config, Rate)
    assert pickle.loads(pickle.dumps(config)) == config
    assert resolve(config.evolve(lr=1.0)).twice == 2.0
    with refused():
        draft.widht = 3  # type: ignore[attr-defined]


def test_an_attribute_must_not_hide_a_field() -> None:
    class Hides:
        width = 7

    with refused(TypeError):
        declare({}, (Hides, Size))
    with refused(TypeError):
        declare({"area": int}, (Mixed,), area=1)


def test_a_field_below_that_no_method_can_derive() -> None:
    class Below(Config):
        size: Size | None = None

        @derive("size.wide")
        def _derive_wide(self) -> int:
            return 1

    with refused():
        resolve(Below())


@pytest.mark.parametrize("word", ["tag", "sweep", "silence"])
def test_words_of_the_root_are_for_its_sections_only(word: str) -> None:
    values: dict[str, Any] = {word: 0.5}
    part = declare({word: float}, **values)
    with refused():
        compose(part)
    whole = declare({"part": part}, part=field(factory=part))
    config: Any = compose(whole, flags=[f"--part.{word}", "0.25"]).resolve()
    assert getattr(config.part, word) == 0.25
    assert getattr(resolve(part()), word) == 0.5


def test_what_a_subclass_says_anew_of_a_field_counts() -> None:
    class Anew(Limited):
        x: int = field(default=-3, ge=-5, role=IDENTITY)
        twice: int  # type: ignore[reportGeneralTypeIssues]

    known = Anew.__setpoint__.fields["x"]
    assert (known.bounds and known.bounds.describe()) == ">= -5, <= 10"
    assert known.role is IDENTITY and known.tags == ("t",)
    assert resolve(Anew(x=4)).twice == 8

    class Wide(Limited):
        x: int = 20

    with refused():
        resolve(Wide())

    class Text(Limited):
        x: str = "a"  # type: ignore[assignment]

    with refused():
        resolve(Text())


def test_classes_that_are_made_by_a_call() -> None:
    body = {"__annotations__": {"x": int}, "x": 1}
    for made in (
        type("Made", (Config,), dict(body)),
        types.new_class("Made", (Config,), {"type": "made"}, lambda names: names.update(body)),
    ):
        cls: Any = made
        assert (cls.__module__, cls.__qualname__) == (__name__, "Made")
        assert compose(cls, flags=["--x", "3"]).resolve() == resolve(cls(x=3))
        with refused():
            cls(x="a")


class Own(Abstract, type="own"):
    """A variant of an abstract family, which is also what a protocol asks for."""

    def run(self) -> int:
        return 7


class Runs(Config, Runner):
    """A config that implements a protocol."""

    lr: float = 0.5

    def run(self) -> int:
        return 8


def test_abstract_families_and_protocols() -> None:
    class Root(Config):
        own: Abstract = field(factory=Own)
        one: Abstract

    root = compose(Root, flags=["--own.lr", "3", "--one", "own"]).resolve()
    assert root.own.run() == 7 and isinstance(root.own, Abstract)
    assert resolve(Runs(lr=2)).run() == 8 and not isinstance(Size(), Runs)

    class Alone(Config, abc.ABC):
        @abc.abstractmethod
        def run(self) -> int: ...

    class Section(Config):
        alone: Alone

    with refused():
        compose(Section, flags=["--alone", "{}"]).resolve()


def test_sections_that_nest_without_end_are_refused() -> None:
    class Endless(Config):
        x: Endless = field(factory=lambda: Endless())

    with refused():
        resolve(Endless())

    class Chain(Config):
        x: Chain | None = None

    chain = Chain()
    for _ in range(3000):
        chain = Chain(x=chain)
    with refused():
        resolve(chain)


def test_data_that_nests_without_end_is_refused() -> None:
    cls = declare({"x": Any, "y": int}, x=None, y=1)
    itself: list[Any] = []
    itself.append(itself)
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    for value in (itself, deep, {"a": itself}):
        with refused():
            cls(x=value)
        with refused():
            cls(y=value)
        with refused():
            resolve(cls()).evolve(x=value)


def test_another_package_makes_no_family_of_a_plain_section() -> None:
    class Part(Config):
        width: int = 1

    class Whole(Config):
        part: Part = field(factory=Part)

    body = {"__module__": "plugin", "__qualname__": "More", "__annotations__": {"k": int}, "k": 1}
    more: Any = META("More", (Part,), body, type="more")
    assert resolve(Whole()) == resolve(Whole(part=Part()))
    assert compose(Whole, flags=["--part.width", "3"]).resolve().part == resolve(Part(width=3))
    assert type(compose(Whole, flags=["--part", "more"]).resolve().part) is more

    class Own(Part, type="own"):
        pass

    with refused():
        Whole(part=Part())
    assert type(resolve(Whole(part=Own())).part) is Own


def test_a_subclass_without_a_tag() -> None:
    class Part(Config):
        width: int = 1

    class Other(Part):
        pass

    class Whole(Config):
        part: Part = field(factory=Part)

    with refused():
        Whole(part=Other())


def test_tags_are_unique_within_a_family_only() -> None:
    class Adamw(SourceConfig, type="adamw"):
        pass

    try:
        assert SourceConfig.__setpoint__.variants["adamw"] is Adamw
        with refused(TypeError):

            class Second(SourceConfig, type="adamw"):
                pass
    finally:
        del SourceConfig.__setpoint__.variants["adamw"]


def test_a_config_nested_in_its_owner_is_built_as_it() -> None:
    assert Component.Config.__setpoint__.owner == f"{__name__}:Component"
    assert Component.Config(size=3).build().size == 3


class Component:
    """A user's component with its configuration in one file."""

    class Config(Config):
        size: int = 1

    def __init__(self, config: Component.Config) -> None:
        self.size = config.size
