"""Edits of a fork reach the fork alone, and its cautions are those of what it holds."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.config import Config, Problem, SetpointError, derive, derived, field, resolve, rule
from setpoint.config.draft.copying import draft_of
from setpoint.config.draft.walk import dropped_values, leaves, shared_places
from setpoint.config.record.record import differences, fingerprint
from setpoint.config.resolving.checks import cautions_of
from setpoint.config.values.node import chain_of, is_frozen, state_of
from setpoint.config.values.origin import PROGRAM, Origin
from setpoint.config.words.errors import Caution
from setpoint.config.words.plain_data import PlainScalar

from .helpers import resolved
from .sample import Batch, Job
from .strategies import jobs


class Node(Config):
    value: int = 0
    next: Node | None = None


def test_a_config_can_be_put_into_a_fork_of_itself() -> None:
    once = resolve(Node(value=1))
    twice = resolve(once.evolve(value=2, next=once))
    assert (twice.value, twice.next) == (2, once)
    draft = twice.evolve()
    draft.next = twice
    assert resolve(draft).next == twice


@settings(max_examples=25, deadline=None)
@given(jobs, jobs)
def test_a_fork_resolves_as_its_pickled_copy_does(draft: Job, other: Job) -> None:
    config = resolve(draft)
    fork = config.evolve()
    for name in ("model", "optimizer", "batch", "name"):
        if chain_of(other, name):
            fork.set_field(name, getattr(resolve(other), name), Origin(PROGRAM))
    fork.batch = Batch(size=31)
    quick, slow = resolve(fork), resolve(pickle.loads(pickle.dumps(fork)))
    assert quick == slow
    assert fingerprint(quick) == fingerprint(slow)
    both = [
        [(x.key, x.value, x.describe_origin(), x.role) for x in leaves(c)] for c in (quick, slow)
    ]
    assert both[0] == both[1]
    assert {d.path for d in differences(config, quick)} == {
        d.path for d in differences(config, slow)
    }


def test_what_was_dropped_and_what_is_suspicious_survive_pickling() -> None:
    config = resolved("--optimizer=adamw", "--optimizer.lr=0.1")
    state_of(config.optimizer).dropped = (("momentum", 0.9, Origin(PROGRAM), "why not"),)
    state_of(config).cautions = (Caution("a-code", "seed", "is odd"),)
    twin = pickle.loads(pickle.dumps(config))
    assert list(dropped_values(twin)) == list(dropped_values(config)) != []
    assert [caution.line() for caution in cautions_of(twin)] == ["seed: is odd (a-code)"]


class Leaf(Config):
    size: int = 1
    sizes: list[int] = field(factory=lambda: [1, 2])
    total: int = derived()
    above: int = derived()

    @derive("total")
    def _derive_total(self) -> int:
        return self.size + sum(self.sizes)

    @derive("above")
    def _derive_above(self) -> int:
        return -1

    @rule(cautions={"large": "a leaf is large"})
    def _check_size(self) -> Iterator[Problem]:
        if self.size > 4:
            yield Caution("large", "size", "is large")


class Branch(Config):
    one: Leaf = field(factory=Leaf)
    two: Leaf = field(factory=Leaf)
    many: list[Leaf] = field(factory=lambda: [Leaf(size=5)])
    named: dict[str, Leaf] = field(factory=dict)
    perhaps: Leaf | None = None
    scale: int = 3

    @derive("two.above")
    def _derive_two(self) -> int:
        return 10 * self.scale


class Root(Config):
    left: Branch = field(factory=Branch)
    right: Branch = field(factory=Branch)
    base: int = 4

    @derive("left.one.above")
    def _derive_left(self) -> int:
        return self.base + self.right.one.size


Place = tuple[str, ...]
places = st.tuples(
    st.sampled_from(["left", "right"]), st.sampled_from(["one", "two", "many", "named", "perhaps"])
)
KINDS = ["read", "set", "grow", "original", "tie", "swap", "off", "copy", "evolve", "scale",
         "refer"]  # fmt: skip
edits = st.lists(st.tuples(st.sampled_from(KINDS), places, places, st.integers(0, 9)), max_size=7)


def leaf_at(root: Root, place: Place) -> Any:
    held = getattr(getattr(root, place[0]), place[1])
    if place[1] == "named":
        return held.get("a")
    return held[0] if place[1] == "many" else held


def put(root: Root, place: Place, leaf: Any) -> None:
    branch = getattr(root, place[0])
    whole = {"many": [leaf], "named": {"a": leaf}}.get(place[1], leaf)
    setattr(branch, place[1], whole)


def edited(draft: Root, original: Root, edit: tuple[str, Place, Place, int]) -> Root:
    kind, place, other, number = edit
    leaf = leaf_at(draft, place)
    if kind == "set" and leaf is not None and not is_frozen(leaf):
        leaf.size = number
    elif kind == "grow" and leaf is not None and not is_frozen(leaf):
        leaf.sizes.append(number)
    elif kind in ("original", "tie"):
        taken = leaf_at(original if kind == "original" else draft, other)
        if taken is not None:
            put(draft, place, taken)
    elif kind == "swap":
        draft.left, draft.right = draft.right, draft.left
    elif kind == "off":
        draft.left.perhaps = None
    elif kind == "copy":
        return copy(draft)
    elif kind == "evolve":
        return draft.evolve(base=number)
    elif kind == "scale":
        draft.right.scale = number
    elif kind == "refer":
        text: Any = f"${{{place[0]}.one.{'total' if number % 2 else 'size'}}}"
        draft.right.scale = text
    return draft


@settings(max_examples=60, deadline=None)
@given(edits, edits, st.booleans())
def test_edits_of_a_fork_never_reach_the_original(
    first: list[Any], second: list[Any], tied: bool
) -> None:
    draft = Root()
    draft.left.perhaps = Leaf(size=3)
    if tied:
        draft.right.one = draft.left.two
    config = resolve(draft)
    for edit in first:
        draft = edited(draft, config, edit)
    with suppress(SetpointError):  # if a section contains itself, the first config will do
        config = resolve(draft)
    before = [(leaf.key, leaf.value) for leaf in leaves(config)], shared_places(config)
    fork = draft_of(config)
    for edit in second:
        fork = edited(fork, config, edit)
    with suppress(SetpointError):
        resolved = resolve(fork)
        assert resolve(resolved) == resolved
    assert ([(leaf.key, leaf.value) for leaf in leaves(config)], shared_places(config)) == before


def test_what_follows_from_outside_is_determined_again() -> None:
    tree = resolve(Root())
    fork = resolve(tree.evolve(base=6))
    assert (fork.left.one.above, tree.left.one.above) == (7, 5)
    draft = tree.evolve()
    draft.right.set_field("scale", PlainScalar("${left.scale}"), Origin(PROGRAM))
    again = resolve(draft).evolve()
    again.left.scale = 4
    assert resolve(again).right.scale == 4
