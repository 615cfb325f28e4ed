import json
import math
import pickle

from hypothesis import given, settings

from setpoint.config import BUDGET, IDENTITY, RUNTIME, Config, Free, Role, field, resolve
from setpoint.config.draft.walk import leaves
from setpoint.config.record.record import ABSENT, differences, fingerprint
from setpoint.config.words.plain_data import plain

from .helpers import resolved
from .sample import Job, Sgd
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


def test_what_makes_two_fingerprints_differ() -> None:
    base = resolve(Job())
    assert differences(base, resolve(Job(name="other", duration="5 epochs")), [IDENTITY]) == []
    found = differences(base, resolve(Job(name="other", seed=1, optimizer=Sgd())), [IDENTITY])
    assert {item.path for item in found} == {
        "seed", "optimizer.type", "optimizer.betas", "optimizer.momentum", "optimizer.nesterov"
    }  # fmt: skip
    (seed,) = [item for item in found if item.path == "seed"]
    assert (seed.left, seed.right, seed.left_origin) == (1234, 1, "default")
    assert seed.right_origin.startswith("program (tests/config/test_difference.py:")


@given(drafts, drafts)
@settings(max_examples=40, deadline=None)
def test_no_difference_of_identity_means_the_same_fingerprint(one: Job, other: Job) -> None:
    left, right = resolve(one), resolve(other)
    assert (differences(left, right, [IDENTITY]) == []) == (fingerprint(left) == fingerprint(right))


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
@settings(max_examples=25, deadline=None)
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
        for role in (RUNTIME, BUDGET, IDENTITY):
            assert found_in(*pair, role) == expected_in(*pair, role)


def test_differences_in_containers_of_every_kind() -> None:
    class Part(Config, role=BUDGET):
        x: int = 1
        y: float = math.inf

    class Root(Config):
        one: Part | None = None
        many: tuple[Part, ...] = ()
        named: dict[str, Part] | None = None
        deep: dict[str, tuple[Part, ...]] = field(factory=dict, role=RUNTIME)
        pair: tuple[int, Part] = field(factory=lambda: (1, Part()))
        numbers: list[float] = field(factory=list)
        area: Free = field(factory=Free)

    shared = Part(x=5)
    roots = [
        resolve(Root(**values))
        for values in (
            {},
            {"named": {}, "deep": {"a": ()}},
            {"named": {"b": Part(), "a": Part(x=2)}, "deep": {"a": (Part(),)}, "many": (Part(),)},
            {"named": {"a": Part(), "b": Part(x=2)}, "many": (Part(y=2),), "pair": (2, Part(x=3))},
            {"one": Part(), "numbers": [1, math.inf], "area": {"a": 1, "b": {"c": "inf"}}},
            {"one": Part(x=2), "numbers": [1, 2], "area": {"a": True, "b": {"c": 1.5}}},
            {"one": shared, "many": (shared, Part())},
            {"one": Part(x=5), "many": (Part(x=5), Part())},
        )
    ]
    roots += [resolve(root.evolve(numbers=[3])) for root in roots]
    for left in roots:
        for right in roots:
            assert found_in(left, right) == expected_in(left, right)


def test_a_difference_says_in_another_process_where_its_values_come_from() -> None:
    left = resolved()
    (found,) = differences(left, resolve(left.evolve(seed=99)))
    twin = pickle.loads(pickle.dumps(found))
    assert "test_difference.py:" in twin.right_origin
    assert (str(twin), twin.left_origin) == (str(found), found.left_origin)
