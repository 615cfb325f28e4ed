"""Garbage is collected when it is asked for, and Python is left as it was."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from setpoint.config import resolve
from setpoint.resilience.config import GarbageCollection
from setpoint.resilience.gc import PacedCollection


@contextmanager
def collections() -> Iterator[list[int]]:
    """The generations that are collected inside the block."""
    seen: list[int] = []

    def note(phase: str, details: dict[str, Any]) -> None:
        if phase == "start":
            seen.append(details["generation"])

    gc.callbacks.append(note)
    try:
        yield seen
    finally:
        gc.callbacks.remove(note)


def make_garbage() -> None:
    """Far more cycles than Python waits for."""
    for _ in range(20_000):
        ring: list[Any] = []
        ring.append(ring)


@pytest.fixture(autouse=True)
def _automatic() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


@pytest.mark.parametrize("generation", [0, 2])
def test_collected_only_when_asked(generation: int) -> None:
    paced = PacedCollection(resolve(GarbageCollection(generation=generation)))
    with collections() as seen:
        paced.start()
        make_garbage()
        assert seen == [2]
        paced.collect()
        paced.collect()
        assert seen == [2, generation, generation]
        paced.close()
        assert gc.isenabled()
        make_garbage()
        assert len(seen) > 3


def test_what_was_off_stays_off() -> None:
    paced = PacedCollection(resolve(GarbageCollection()))
    gc.disable()
    paced.start()
    paced.close()
    assert not gc.isenabled()
    gc.enable()
    paced.close()  # closed a second time it changes nothing
    assert gc.isenabled()


@pytest.mark.usefixtures("thawed")
def test_what_is_there_at_the_start_is_set_aside() -> None:
    before: list[Any] = []
    before.append(before)
    paced = PacedCollection(resolve(GarbageCollection(generation=2)))
    paced.start()
    assert gc.get_freeze_count() > 10_000
    # Its few objects are found again among those made since; what was there before is not.
    assert not any(each is before for each in gc.get_objects())
    paced.close()
    assert gc.get_freeze_count() == 0
    assert any(each is before for each in gc.get_objects())


@pytest.mark.usefixtures("thawed")
def test_what_others_have_set_aside_stays_there() -> None:
    gc.freeze()
    paced = PacedCollection(resolve(GarbageCollection()))
    paced.start()
    paced.close()
    assert gc.get_freeze_count() > 0
    gc.unfreeze()
