"""Lists and mappings in drafts and frozen configs."""

import copy
import pickle
from typing import Any

import pytest

from setpoint.config import ConfigError, SetpointError, resolve
from setpoint.config.values.containers import FrozenDict, FrozenList, last_change

from ...support.snapshots import refused
from ..sample import Job


def test_every_way_into_a_list_is_checked() -> None:
    tags = Job(tags=["a"]).tags
    tags.append("b")
    tags.insert(0, "c")
    tags.extend(["d"])
    tags += ["e"]
    tags[0] = "f"
    tags[1:2] = ["g", "h"]
    assert tags == ["f", "g", "h", "b", "d", "e"]
    for action in (
        lambda: tags.append(1),
        lambda: tags.insert(0, 1),
        lambda: tags.extend(["x", 1]),
        lambda: tags.__iadd__([1]),
        lambda: tags.__setitem__(0, 1),
        lambda: tags.__setitem__(slice(0, 1), [1]),
    ):
        with refused(ConfigError):
            action()
    with refused():
        tags *= 2
    assert tags == ["f", "g", "h", "b", "d", "e"]


def test_every_way_out_of_a_list_is_remembered() -> None:
    for action in (
        lambda tags: tags.pop(),
        lambda tags: tags.remove("a"),
        lambda tags: tags.clear(),
        lambda tags: tags.reverse(),
        lambda tags: tags.sort(key=len),
        lambda tags: tags.__delitem__(0),
    ):
        tags = Job(tags=["a", "b"]).tags
        assert last_change(tags) is None
        action(tags)
        origin = last_change(tags)
        assert origin is not None
        assert "test_held.py" in origin.describe(())


def test_every_way_into_a_mapping_is_checked() -> None:
    limits = Job(thresholds={"a": 1}).thresholds
    limits["b"] = 2
    limits.update(c=3)
    limits.update({"d": 4})
    limits |= {"e": 5}
    assert limits.setdefault("f", 6) == 6.0
    assert limits.setdefault("f", 7) == 6.0
    assert limits == {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 5.0, "f": 6.0}
    for action in (
        lambda: limits.__setitem__("a", "x"),
        lambda: limits.update(a="x"),
        lambda: limits.__ior__({"a": "x"}),
        lambda: limits.setdefault("g", "x"),
    ):
        with refused(ConfigError):
            action()
    with refused(ConfigError):
        limits[3] = 1.0
    assert limits.pop("f") == 6.0
    del limits["e"]
    assert limits.popitem() == ("d", 4.0)
    limits.clear()
    assert limits == {}
    assert last_change(limits) is not None


def test_frozen_containers_refuse_every_change() -> None:
    config = resolve(Job(tags=["a"], thresholds={"a": 1}))
    tags, limits = config.tags, config.thresholds
    assert isinstance(tags, FrozenList)
    assert isinstance(limits, FrozenDict)
    changes: list[tuple[Any, str, tuple[object, ...]]] = [
        (tags, "append", ("b",)), (tags, "extend", ([],)), (tags, "insert", (0, "b")),
        (tags, "remove", ("a",)), (tags, "pop", ()), (tags, "clear", ()), (tags, "sort", ()),
        (tags, "reverse", ()), (tags, "__setitem__", (0, "b")), (tags, "__delitem__", (0,)),
        (tags, "__iadd__", (["b"],)), (tags, "__imul__", (2,)), (limits, "update", ({"a": 2},)),
        (limits, "setdefault", ("b", 2)), (limits, "pop", ("a",)), (limits, "popitem", ()),
        (limits, "clear", ()), (limits, "__setitem__", ("a", 2)), (limits, "__delitem__", ("a",)),
        (limits, "__ior__", ({"a": 2},)),
    ]  # fmt: skip
    for held, name, args in changes:
        with pytest.raises(SetpointError):
            getattr(held, name)(*args)
    assert (tags, limits) == (["a"], {"a": 1.0})
    assert hash(tags) == hash(FrozenList(["a"]))
    for twin in (copy.deepcopy(tags), pickle.loads(pickle.dumps(tags))):
        assert twin == tags
        assert type(twin) is FrozenList
    assert type(pickle.loads(pickle.dumps(limits))) is FrozenDict
