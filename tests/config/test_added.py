"""Sections that other packages add to a root."""

import copy
import pickle
from collections.abc import Iterator

import pytest

from setpoint.config import RUNTIME, Config, ConfigError, derive, derived, field, resolve
from setpoint.config.composition import compose
from setpoint.config.draft.walk import to_minimal, to_plain
from setpoint.config.record.record import fingerprint
from setpoint.config.schema.class_info import add_section, added_sections
from setpoint.editor_schema.help import field_help

from ..support.snapshots import refused


class Root(Config):
    size: int = field(default=1, ge=1)


class Lower(Root):
    more: int = 2


class Lab(Config):
    """What our laboratory adds."""

    level: int = field(default=3, ge=0)

    twice: int = derived()

    @derive("twice")
    def _twice(self) -> int:
        return 2 * self.level


def take_away(name: str) -> None:
    for cls in (Root, Lower):
        del cls.__setpoint__.fields[name], cls.__setpoint__.added[name]


@pytest.fixture
def added() -> Iterator[None]:
    add_section(Root, "lab", Lab)
    yield
    take_away("lab")


def test_it_is_null_and_no_part_of_the_fingerprint_until_it_is_set() -> None:
    before = fingerprint(resolve(Root()))
    add_section(Root, "lab", Lab)
    try:
        config = resolve(Root())
        assert getattr(config, "lab") is None  # noqa: B009 - type checkers do not know it
        assert fingerprint(config) == before
        assert fingerprint(compose(Root, flags=["lab.level=4"]).resolve()) != before
    finally:
        take_away("lab")


@pytest.mark.parametrize("root", [Root, Lower])
@pytest.mark.usefixtures("added")
def test_it_is_a_section_like_any_other(root: type[Root]) -> None:
    config = compose(root, flags=["--lab.level", "5"]).resolve()
    (lab,) = added_sections(config).values()
    assert isinstance(lab, Lab) and (lab.level, lab.twice) == (5, 10)
    assert to_minimal(config) == {"lab": {"level": 5}}
    assert compose(root, program=to_plain(config)).resolve() == config
    for other in (copy.deepcopy(config), pickle.loads(pickle.dumps(config)), config.evolve()):
        assert added_sections(other).keys() == {"lab"}
    assert added_sections(resolve(config.evolve(lab=None))) == {}
    with refused(ConfigError):
        compose(root, flags=["lab.levl=5"]).resolve()
    assert field_help(root, "lab") == "What our laboratory adds."


@pytest.mark.usefixtures("added")
def test_a_section_is_added_once() -> None:
    add_section(Root, "lab", Lab)
    other = type(Lab)("Lab", (Config,), {"__qualname__": "Other", "__module__": __name__})
    with refused(TypeError):
        add_section(Root, "more", int)  # pyright: ignore[reportArgumentType]
    with refused(TypeError):
        add_section(Root, "lab", other)
    assert Root.__setpoint__.added.get("lab") is Lab


@pytest.mark.parametrize("name", ["size", "type", "a.b", "_x", "evolve", "class-name", "extends"])
def test_names_that_cannot_be_used(name: str) -> None:
    with refused(TypeError):
        add_section(Root, name, Lab)


@pytest.mark.usefixtures("added")
def test_the_role_is_the_roots_unless_it_is_given() -> None:
    add_section(Root, "shown", Lab, role=RUNTIME)
    try:
        plain = fingerprint(resolve(Root()))
        assert fingerprint(compose(Root, flags=["shown.level=9"]).resolve()) == plain
    finally:
        take_away("shown")
