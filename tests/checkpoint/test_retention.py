"""Which checkpoints stay."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from setpoint.checkpoint.folder import At, Positions, Retention, is_named, protected_by_pointers
from setpoint.checkpoint.store import CheckpointStore
from setpoint.units import Period

AT = st.sampled_from([None, "powers_of_two", (3, 17)])


def left(rule: Retention, steps: set[int], protected: dict[int, str]) -> set[int]:
    """What stays of checkpoints; a step has 0.3 epochs."""
    found = rule.reasons(
        steps, protected, lambda step, unit: step if unit == "steps" else 0.3 * step
    )
    assert list(found) == sorted(steps)
    return {step for step, why in found.items() if why}


@given(
    steps=st.sets(st.integers(0, 60)),
    keep=st.none() | st.integers(1, 60),
    every=st.none() | st.sampled_from([Period("7 steps"), Period("1.5 epochs")]),
    at=AT,
    protected=st.sets(st.integers(0, 60)),
)
def test_what_stays(
    steps: set[int], keep: int | None, every: Period | None, at: At, protected: set[int]
) -> None:
    stays = left(Retention(keep, every, at), steps, dict.fromkeys(protected, "best"))
    expected = set(sorted(steps, reverse=True)[: len(steps) if keep is None else keep])
    expected |= steps & protected
    expected |= {step for step in steps if is_named(at, step)}
    if every is not None:
        # 1.5 epochs are 5 steps.
        length = 7 if every.unit == "steps" else 5
        for start in range(length, 61, length):
            within = steps & set(range(start, start + length))
            expected |= {min(within)} if within else set()
    assert stays == expected
    # What is gone changes nothing for the rest.
    assert left(Retention(keep, every, at), stays, dict.fromkeys(protected, "best")) == stays


@given(
    period=st.integers(1, 9),
    keep=st.integers(1, 4),
    every=st.integers(1, 20),
    best=st.integers(0, 60),
)
def test_a_run_keeps_the_same_as_if_nothing_had_gone_in_between(
    period: int, keep: int, every: int, best: int
) -> None:
    rule = Retention(keep, Period(f"{every} steps"))
    saved = range(0, 61, period)
    here: set[int] = set()
    for step in saved:
        here = left(rule, here | {step}, {best: "best"})
    assert here == left(rule, set(saved), {best: "best"})


def test_named_steps() -> None:
    assert [s for s in range(20) if is_named("powers_of_two", s)] == [1, 2, 4, 8, 16]
    assert [s for s in range(20) if is_named((5, 2), s)] == [2, 5]
    assert not any(is_named(None, s) for s in range(20))


def save(store: CheckpointStore, step: int, metric: float | None = None) -> None:
    state = {"position": {"step": step, "tokens": step * 10, "epochs": step * 0.3}}
    store.save(step, {"model": {"w": torch.ones(1)}}, state, metric)


def test_by_position(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1, keep_every=Period("1 epochs"))
    for step in range(1, 10):
        save(store, step)
    assert store.steps == [4, 7, 9]  # the first after 1 and 2 epochs, and the newest


def test_what_has_no_readable_position_stays(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1, keep_every=Period("1000 tokens"))
    save(store, 1)
    (tmp_path / "step-00000001" / "state.json").write_text("{")
    fresh = CheckpointStore(tmp_path, keep=1, keep_every=Period("1000 tokens"))
    for step in (2, 3):
        save(fresh, step)
    assert fresh.steps == [1, 3]


def test_pointers_protect_and_what_is_unreadable_protects_all(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    for step, metric in ((1, 1.0), (2, 2.0), (3, 3.0)):
        save(store, step, metric)
    assert store.steps == [1, 3]
    assert protected_by_pointers(tmp_path) == {3: "latest", 1: "best"}
    (tmp_path / "best").unlink()
    (tmp_path / "best").mkdir()  # there, and cannot be read
    assert protected_by_pointers(tmp_path) is None
    save(store, 4)
    assert store.steps == [1, 3, 4]


def test_a_store_that_does_not_write_changes_nothing(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1, 1.0)
    save(store, 2, 2.0)
    (tmp_path / "step-00000003.tmp-99999999").mkdir()
    before = sorted(path.name for path in tmp_path.iterdir())
    reader = CheckpointStore(tmp_path, writes=False)
    reader.prepare()
    reader.set_aside_after(1)
    reader.forget_best()
    found = reader.load_newest()
    assert found is not None and found.step == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_positions_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(CheckpointStore(tmp_path), 1)
    positions = Positions(tmp_path)
    assert positions.distance(1, "tokens") == 10
    monkeypatch.setattr("setpoint.checkpoint.folder.read_verified", None)
    assert positions.distance(1, "epochs") == pytest.approx(0.3)
    assert positions.distance(1, "steps") == 1
