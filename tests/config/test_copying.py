from typing import Any

from hypothesis import given, settings

from setpoint.config import Config, Free, resolve
from setpoint.config.base import State, chain_of
from setpoint.config.copying import draft_of, frozen_value, pack, unpack
from setpoint.config.types.held import CheckedDict, CheckedList, FrozenDict, FrozenList

from .helpers import resolved
from .sample import Batch, Job
from .strategies import jobs


def current_parts(config: Config) -> dict[int, object]:
    """Every section, list, mapping and memory of a config, by identity."""
    found: dict[int, object] = {}
    waiting: list[Any] = [config]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Config):
            found[id(part)] = part
            if isinstance(part._state, State):
                found[id(part._state)] = part._state
                found.update((id(c), c) for c in part._state.origins.values())
            waiting += pack(part)[1].values()
        elif isinstance(part, Free):
            found[id(part)] = part
            waiting += [item for _, item in part.items()]
        elif isinstance(part, CheckedList):
            found[id(part)] = part
            waiting += part
        elif isinstance(part, CheckedDict):
            found[id(part)] = part
            waiting += part.values()
        elif isinstance(part, tuple):
            waiting += part
    return found


@settings(max_examples=50, deadline=None)
@given(jobs)
def test_copies_share_no_mutable_state(draft: Job) -> None:
    config = resolve(draft)
    for original in (draft, config):
        parts = current_parts(original)
        for copy in (draft_of(original), original.evolve(seed=1), resolve(original)):
            assert not parts.keys() & current_parts(copy).keys()
    assert resolve(draft_of(config)) == config


def test_what_was_computed_is_forgotten_and_what_was_given_kept() -> None:
    config = resolved("--model.dim=${batch.size}", "--model.heads=4")
    draft = draft_of(config)
    assert not chain_of(draft.model, "head_dim")
    assert draft.model.dim.text == "${batch.size}"
    assert draft.model.heads == 4


def test_frozen_values() -> None:
    draft = Job(tags=["a"], thresholds={"a": 1})
    draft.user.a.b = 1
    assert type(frozen_value(draft.tags)) is FrozenList
    assert type(frozen_value(draft.thresholds)) is FrozenDict
    assert hash(frozen_value(draft.user)) == hash(draft.user.copy(frozen=True))
    assert frozen_value((draft.tags, 3)) == (["a"], 3)


def test_packing_and_unpacking() -> None:
    batch = Batch(size=3)
    twin = Batch.__new__(Batch)
    unpack(twin, pack(batch))
    assert twin == batch
    assert [origin.layer for origin, _ in chain_of(twin, "size")] == ["program"]
