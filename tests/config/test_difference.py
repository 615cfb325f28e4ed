"""Differences of two configurations."""

import json
import pickle

from hypothesis import given, settings

from setpoint.config import BUDGET, IDENTITY, RUNTIME, Config, Role, resolve
from setpoint.config.draft.walk import leaves
from setpoint.config.record.record import ABSENT, Entry, Table, compare, differences, fingerprint
from setpoint.config.words.plain_data import plain

from .helpers import resolved
from .sample import Job
from .strategies import jobs as drafts


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


def test_roles_can_be_chosen() -> None:
    left, right = resolve(Job()), resolve(Job(seed=1, name="x", duration="1 h"))
    assert [d.path for d in differences(left, right, (RUNTIME,))] == ["name"]
    assert [d.path for d in differences(left, right, (BUDGET,))] == ["duration"]


Sides = dict[str, tuple[str | None, str | None]]


def text_of(value: object) -> str | None:
    return None if value is ABSENT else json.dumps(plain(value))


def found_in(left: Config, right: Config, *roles: Role) -> Sides:
    return {
        item.path: (text_of(item.left), text_of(item.right))
        for item in differences(left, right, roles or None)
    }


def expected_in(left: Config, right: Config, *roles: Role) -> Sides:
    """What two tables of leaves differ in."""
    tables = [{leaf.key: leaf for leaf in leaves(config)} for config in (left, right)]
    pairs = {key: tuple(table.get(key) for table in tables) for key in {*tables[0], *tables[1]}}
    sides: Sides = {}
    for key, (one, other) in pairs.items():
        if not roles or any(leaf and leaf.role in roles for leaf in (one, other)):
            sides[key] = one and text_of(one.value), other and text_of(other.value)
    return {key: both for key, both in sides.items() if both[0] != both[1]}


@given(drafts, drafts)
@settings(max_examples=20, deadline=None)
def test_exactly_the_values_that_differ_are_found(one: Job, other: Job) -> None:
    left, right = resolve(one), resolve(other)
    fork = left.evolve()
    fork.batch.size += 1
    fork.optimizer.lr *= 2
    fork.user["other"] = 1e300
    fork.evaluations = right.evaluations
    if fork.sources:
        fork.sources[0].weight = 0.5
    changed = resolve(fork)
    mixed = resolve(changed.evolve(thresholds={"x": 1.0}, tags=["t"], model=right.model))
    for pair in ((left, right), (right, left), (left, changed), (changed, mixed), (left, mixed)):
        assert found_in(*pair) == expected_in(*pair)
        same = fingerprint(pair[0]) == fingerprint(pair[1])
        assert (differences(*pair, [IDENTITY]) == []) == same
        for role in (RUNTIME, BUDGET, IDENTITY):
            assert found_in(*pair, role) == expected_in(*pair, role)


def test_a_difference_says_in_another_process_where_its_values_come_from() -> None:
    left = resolved()
    (found,) = differences(left, resolve(left.evolve(seed=99)))
    twin = pickle.loads(pickle.dumps(found))
    assert "test_difference.py:" in twin.right_origin
    assert (str(twin), twin.left_origin) == (str(found), found.left_origin)


def entries(role: Role = IDENTITY, **values: object) -> Table:
    return {path: Entry(value, "here", role) for path, value in values.items()}


def test_a_section_can_be_left_out() -> None:
    one, two = {"a.b": Entry(1, "", IDENTITY), "ab": Entry(1, "", IDENTITY)}, entries(ab=2)
    assert [row.path for row in compare([one, two], ignore=["a"])] == ["ab"]
