"""Saving, loading, selecting, resuming: what a store promises while nothing fails."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.checkpoint.config import Checkpoint
from setpoint.checkpoint.folder import At, Retention, is_named, protected_by_pointers, read_pointer
from setpoint.checkpoint.places import find_checkpoint
from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import ConfigError, resolve
from setpoint.shapes.placed import put
from setpoint.units import Period

from ..support.snapshots import refused
from .stored import load, pointers


def tensors(step: int) -> dict[str, dict[str, torch.Tensor]]:
    return {"model": {"w": torch.full((2,), float(step))}, "rng": {"torch": torch.get_rng_state()}}


def make(root: Path, metrics: list[float | None], **options: object) -> CheckpointStore:
    store = CheckpointStore(root, **options)  # type: ignore[arg-type]
    for index, metric in enumerate(metrics):
        store.save(100 * (index + 1), tensors(index), {"index": index}, metric)
    return store


def test_round_trip(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    state = {"lr": 0.1 + 0.2, "nan": math.nan, "list": [1, None, True], "text": "ü\ud800"}
    path = store.save(7, tensors(7), state, metric=1.25)
    assert path == tmp_path / "checkpoints" / "step-00000007"
    assert sorted(p.name for p in path.iterdir()) == [
        "manifest.json",
        "model.safetensors",
        "rng.safetensors",
        "state.json",
    ]
    loaded = load(store.root, 7)
    assert (loaded.step, loaded.metric, loaded.path) == (7, 1.25, path)
    assert math.isnan(loaded.state.pop("nan"))
    del state["nan"]
    assert loaded.state == state
    for (stem, name), expected in {
        ("model", "w"): torch.full((2,), 7.0),
        ("rng", "torch"): torch.get_rng_state(),
    }.items():
        put(held := torch.zeros_like(expected), loaded.tensors[stem][name])
        assert torch.equal(held, expected)


def test_only_reads_what_is_asked_for(tmp_path: Path) -> None:
    store = make(tmp_path, [None])
    (tmp_path / "step-00000100" / "rng.safetensors").write_bytes(b"broken")
    assert set(load(store.root, "latest", only=("model",)).tensors) == {"model"}
    with pytest.raises(KeyError, match="no tensors 'nothing', only model, rng"):
        load(store.root, "latest", only=("nothing",))


def test_latest_and_best_are_text(tmp_path: Path) -> None:
    store = make(tmp_path, [math.nan, 1.0, 2.0, math.inf])
    assert (tmp_path / "latest").read_text() == "step-00000400\n"
    assert (tmp_path / "best").read_text() == "step-00000200\n"
    assert pointers(store.root) == (400, 200)
    assert load(store.root).step == 400
    assert load(store.root, "best").step == 200


def test_what_is_committed_is_reported_and_what_is_protected_stays(tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    protected: set[int] = set()

    def committed(step: int, path: Path) -> None:
        assert path.name == f"step-00000{step}" and (path / "manifest.json").is_file()
        seen.append((step, read_pointer(store.root, "latest")))
        protected.add(step)

    store = CheckpointStore(tmp_path, keep=1)
    store.committed.append(committed)
    store.protections.append(lambda: protected & {100, 300})
    for step in (100, 200, 300, 400):
        store.save(step, tensors(step), {})
    assert seen == [(step, step) for step in (100, 200, 300, 400)]
    assert store.steps == [100, 300, 400]
    protected.clear()
    store.save(500, tensors(5), {})
    assert store.steps == [500]


def test_saving_a_step_again(tmp_path: Path) -> None:
    store = make(tmp_path, [1.0, 2.0])
    store.save(200, tensors(9), {"again": True})
    loaded = load(store.root, "latest")
    assert loaded.state == {"again": True}
    # The metric was measured at this step, and the step is the same.
    assert loaded.metric == 2.0
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "best",
        "latest",
        "step-00000100",
        "step-00000200",
    ]


@settings(max_examples=15, deadline=None)
@given(
    metrics=st.lists(st.none() | st.floats(0, 3), min_size=1, max_size=9),
    keep=st.none() | st.integers(1, 4),
    keep_best=st.booleans(),
)
def test_retention(
    tmp_path_factory: pytest.TempPathFactory,
    metrics: list[float | None],
    keep: int | None,
    keep_best: bool,
) -> None:
    """After any course of metrics: the last `keep` and the best, and nothing else."""
    root = tmp_path_factory.mktemp("retention")
    store = CheckpointStore(root, keep=keep, keep_best=keep_best)
    for step, metric in enumerate(metrics, start=1):
        store.save(step, {}, {}, metric)
        measured = [(m, s) for s, m in enumerate(metrics[:step], start=1) if m is not None]
        best = min(measured)[1] if measured and keep_best else None
        expected = set(
            range(1, step + 1) if keep is None else range(max(1, step - keep + 1), step + 1)
        )
        assert set(store.steps) == expected | ({best} - {None})
        assert pointers(store.root) == (step, best)
        assert load(store.root, "latest").step == step


def test_nothing_there(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "none")
    assert store.load_newest() is None
    assert store.steps == []
    assert pointers(store.root) == (None, None)
    assert not (tmp_path / "none").exists(), "reading writes nothing"


def test_dangling_pointer(tmp_path: Path) -> None:
    store = make(tmp_path, [None])
    (tmp_path / "latest").write_text("step-00000900\n")
    with refused():
        find_checkpoint(tmp_path / "latest")
    auto = store.load_newest()
    assert auto is not None and auto.step == 100


def test_a_step_behind_the_newest_is_refused(tmp_path: Path) -> None:
    store = make(tmp_path, [3.0, 2.0, 1.0], keep=None)
    with refused():
        store.save(250, {}, {})
    store.set_aside_after(200)
    assert (store.steps, pointers(store.root)) == ([100, 200], (200, 200))
    store.save(250, {}, {}, 9.0)
    assert pointers(store.root) == (250, 200)


def test_everything_or_nothing_set_aside(tmp_path: Path) -> None:
    store = make(tmp_path, [3.0, 2.0])
    store.set_aside_after(200)
    assert (store.steps, pointers(store.root)) == ([100, 200], (200, 200))
    store.set_aside_after(-1)
    names = ["step-00000100.damaged-1", "step-00000200.damaged-1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert store.load_newest() is None


def test_an_unwritable_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refused():
        CheckpointStore(tmp_path / "file" / "checkpoints").save(1, {}, {})


def test_state_that_is_not_json_leaves_nothing(tmp_path: Path) -> None:
    store = make(tmp_path, [None])
    with pytest.raises(TypeError, match=r"state.pair is a tuple"):
        store.save(200, {}, {"pair": (1, 2)})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-00000100"]


AT = st.sampled_from([None, "powers_of_two", (3, 17)])


def left(rule: Retention, steps: set[int], protected: dict[int, str]) -> set[int]:
    """What stays of checkpoints; a step has 0.3 epochs."""
    found = rule.reasons(steps, protected, lambda step, _: 0.3 * step)
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


def test_what_has_no_readable_position_stays(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1, keep_every=Period("1000 tokens"))
    save(store, 1)
    (tmp_path / "step-00000001" / "manifest.json").write_text("{")
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


@pytest.mark.parametrize(
    "flags",
    [
        {"last_dtype": "bf16"},
        {"keep_every": "last_step"},
        {"keep_every": "9 steps", "keep": None},
        {"save": False, "every": "9 steps"},
        {"save": False, "last": "weights"},
        {"save": False, "at": "powers_of_two"},
        {"save": False, "at_start": True},
        {"save": False, "keep_every": "9 steps"},
        {"save": False, "mode": "async"},
    ],
    ids=str,
)
def test_what_would_have_no_effect(flags: dict[str, Any]) -> None:
    with refused(ConfigError):
        resolve(Checkpoint(**flags))


def test_steps_are_counted_from_one() -> None:
    assert resolve(Checkpoint(at=(3, 1))).at == (3, 1)
    for value in ((0,), "powers_of_three", (1.5,), 3):
        with refused():
            Checkpoint(at=value)  # type: ignore[arg-type]
