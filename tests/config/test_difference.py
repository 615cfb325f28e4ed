from typing import Any

import pytest

from setpoint.config import BUDGET, RUNTIME, Config, resolve
from setpoint.config.difference import ABSENT, differences, same

from .helpers import resolved
from .sample import Job, Sgd


def test_only_what_differs_with_both_origins() -> None:
    left = resolve(Job())
    right = resolved("--optimizer=sgd", "--optimizer.lr=1", "--duration=5 epochs", "--seed=1234")
    found = {d.path: d for d in differences(left, right)}
    assert list(found) == [
        "duration", "optimizer.type", "optimizer.lr", "optimizer.betas", "optimizer.momentum",
        "optimizer.nesterov",
    ]  # fmt: skip
    assert found["optimizer.lr"].to_json() == {
        "path": "optimizer.lr", "role": "identity", "left": 3e-4, "left_origin": "default",
        "right": 1.0, "right_origin": "command line --optimizer.lr",
    }  # fmt: skip
    assert found["optimizer.momentum"].left is ABSENT
    assert found["optimizer.betas"].right is ABSENT
    assert "right" not in found["optimizer.betas"].to_json()
    assert repr(ABSENT) == "(absent)"


def test_equal_configs_do_not_differ() -> None:
    assert differences(resolve(Job()), resolve(Job(seed=1234))) == []


def test_roles_can_be_chosen() -> None:
    left, right = resolve(Job()), resolve(Job(seed=1, name="x", duration="1 h"))
    assert [d.path for d in differences(left, right, (RUNTIME,))] == ["name"]
    assert [d.path for d in differences(left, right, (BUDGET,))] == ["duration"]


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (1, 1, True),
        (1, True, False),
        (1, 1.0, False),
        ([1, [2]], [1, [2]], True),
        ([1, [2]], [1, [2.0]], False),
        ([1], [1, 2], False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"b": 1}, False),
        ([], {}, False),
        (None, None, True),
    ],
)
def test_kinds_count(left: Any, right: Any, equal: bool) -> None:
    assert same(left, right) is equal


def test_kinds_count_in_free_areas() -> None:
    left, right = resolve(Job(user={"a": 1})), resolve(Job(user={"a": True}))
    assert [d.path for d in differences(left, right)] == ["user.a"]
    assert issubclass(Sgd, Config)
