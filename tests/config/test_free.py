"""`Free`, the area of users' own keys."""

import copy
import pickle

import pytest

from setpoint.config import Free, Invalid, resolve
from setpoint.config.resolving.checks import describe_value
from setpoint.config.values.origin import Origin
from setpoint.config.words.plain_data import PlainScalar

from ..support.snapshots import refused
from .sample import Job


def test_reading_makes_sections_and_empty_ones_do_not_count() -> None:
    area = Free()
    area.probe.width = 8
    area["probe"]["depth"] = 2
    assert area.nothing.here == Free()
    assert area.dump() == {"probe": {"width": 8, "depth": 2}}
    assert area == Free(probe={"width": 8, "depth": 2})
    assert repr(area) == "Free(probe=Free(width=8, depth=2))"


def test_keys_that_are_methods_are_read_as_items() -> None:
    area = Free(items=3, copy={"dump": 1})
    assert area["items"] == 3
    assert area["copy"]["dump"] == 1
    assert area.dump() == {"items": 3, "copy": {"dump": 1}}


def test_tools_that_ask_for_private_names_create_nothing() -> None:
    area = Free()
    assert not hasattr(area, "_repr_html_")
    assert not hasattr(area, "__array__")
    assert area.dump() == {}


def test_mappings_are_merged_and_values_replaced() -> None:
    area = Free(a={"x": 1}, b=1)
    area.a = {"y": 2}
    area.b = {"z": 3}
    assert area.dump() == {"a": {"x": 1, "y": 2}, "b": {"z": 3}}
    area.a = 5
    assert area.dump()["a"] == 5


@pytest.mark.parametrize("key", ["", "a.b", "_a", "__class__", "\ud800", 1, None])
def test_keys_that_no_path_can_name(key: object) -> None:
    with refused(Invalid):
        Free().put(key, 1, Origin("program"))


def test_a_resolved_area_is_immutable_hashable_and_makes_nothing() -> None:
    draft = Job()
    draft.user.a.b = [1]
    user = resolve(draft).user
    with refused():
        user.a.b = 2
    with refused(AttributeError):
        _ = user.c
    assert hash(user) == hash(resolve(draft).user)
    draft.user.a.b = 2
    assert user.a.b == (1,)


def test_an_area_can_be_copied_and_pickled() -> None:
    area = Free(a={"b": 1})
    for twin in (copy.copy(area), copy.deepcopy(area), pickle.loads(pickle.dumps(area))):
        assert twin == area
        twin.a.b = 2
        assert area.a.b == 1
        assert [value for _, value in twin.a.chain("b")] == [1, 2]


def test_values_that_are_no_mapping_are_refused() -> None:
    with refused(Invalid):
        Free.read(3, Origin("program"))
    with refused(Invalid):
        Free.read(PlainScalar("{a"), Origin("program"))


def test_an_area_comes_from_where_its_keys_do() -> None:
    draft = Job()
    for key, value in (("a", 1), ("b", {"c": 2}), ("d", 3)):
        draft.user.put(key, value, Origin("command line", f"--user.{key}"))
    value, origin = describe_value(draft, (), "user")
    assert value is not None and value.startswith("{a: 1")
    assert origin == "command line --user.a, command line --user.b, command line --user.d"
    assert describe_value(draft, (), "user.b")[1] == "command line --user.b"
    assert describe_value(Job(), (), "user")[1] == "default"


def test_what_nothing_has_set_is_empty() -> None:
    area = Free(a=1, b={"c": 2})
    assert not area.debug and "debug" not in area
    assert (area.get("a"), area.get("debug"), area.get("debug", 3)) == (1, None, 3)
    assert list(area) == ["a", "b"] and len(area) == 2 and "a" in area and bool(area)
    frozen = area.copy(True)
    with pytest.raises(KeyError):
        frozen["debug"]
    with pytest.raises(AttributeError):
        _ = frozen.debug
