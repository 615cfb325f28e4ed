"""Checkpoints that are written while the run goes on."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Event, current_thread, main_thread
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock
from weakref import ref

import numpy as np
import pytest
import torch

from setpoint.checkpoint import staging
from setpoint.checkpoint.folder import list_checkpoints, unfinished
from setpoint.checkpoint.loading import verify_directory
from setpoint.checkpoint.staging import HostMemory, Save
from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import Config, ConfigError, RunError, allow_imports
from setpoint.files import atomic, tensor_file
from setpoint.resilience.signals import StopRequest
from setpoint.shapes.placed import in_memory
from setpoint.train.build.components import build_components
from setpoint.train.callbacks.save import can_overlap_save
from setpoint.train.config import Job
from setpoint.train.loop import Callback, Loop
from setpoint.train.run import train

from ..parallel.background_ranks import (
    a_failed_write_ends_the_run_on_all_ranks,
    a_run_saves_the_same,
    steps_do_not_shorten_how_long_writers_wait,
    too_little_memory_is_said_in_words_on_all_ranks,
)
from ..support.ranks import run_on_ranks
from ..support.snapshots import refused
from ..support.variants import sections
from .effects.checkpoint_fields import late_copies
from .small import assert_same_run, events, small_job

IN_BACKGROUND = ("checkpoint.mode=async", "checkpoint.keep=null", "duration=12 steps")


class Disk:
    """Writes files, from a step on only once `opens` is set, or not at all."""

    def __init__(
        self, patch: pytest.MonkeyPatch, slow: int | None = None, broken: int | None = None
    ) -> None:
        self.slow, self.broken = slow, broken
        self.opens = Event()
        self.threads: set[bool] = set()
        patch.setattr(staging, "write_file", self.write)

    def write(self, path: Path, chunks: Iterable[bytes | memoryview]) -> atomic.Written:
        self.threads.add(current_thread() is main_thread())
        step = int(path.parent.name.split(".")[0].removeprefix("step-"))
        if self.slow is not None and step >= self.slow:
            assert self.opens.wait(60)
        if self.broken is not None and step >= self.broken:
            raise OSError(28, "No space left on device")
        return atomic.write_file(path, chunks)


def store_at(root: Path, in_flight: int = 1) -> CheckpointStore:
    return CheckpointStore(root, keep=None, in_flight=in_flight, timeout=60)


def run_of(folder: Path) -> Path:
    return next(path.parent for path in folder.rglob("events.jsonl"))


def test_a_run_that_saves_in_the_background_saves_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, where a step changes in place what is still to be written; the last save also."""
    rest = (*IN_BACKGROUND, "checkpoint.every=1 steps")
    waited = train(small_job(tmp_path / "sync", *rest, "checkpoint.mode=sync")).directory
    disk = Disk(monkeypatch, slow=0)
    # Each save is written after the step, and the copy of the next one, have been made.
    finish = CheckpointStore._finish

    def finishing(store: CheckpointStore) -> None:
        disk.opens.set()
        finish(store)
        disk.opens.clear()

    monkeypatch.setattr(CheckpointStore, "_finish", finishing)
    monkeypatch.setattr(Save, "wait", lambda *_: True)
    gone_on = train(small_job(tmp_path / "async", *rest, "checkpoint.in_flight=3")).directory
    assert disk.threads == {False}
    steps = list_checkpoints(gone_on / "checkpoints")
    assert steps.keys() == list_checkpoints(waited / "checkpoints").keys() and len(steps) == 12
    for directory in steps.values():
        verify_directory(directory)
        for file in directory.glob("*.safetensors"):
            there = waited / "checkpoints" / directory.name / file.name
            assert file.read_bytes() == there.read_bytes(), file
    assert_same_run(gone_on, waited)
    assert [row["step"] for row in events(gone_on, "save")] == list(steps)


def moving_weights(params: Any, lr: float) -> torch.optim.Optimizer:
    """An optimizer of torch, and hooks of the user's own that update in the backward pass."""

    @torch.no_grad()
    def move(weight: torch.Tensor) -> None:
        weight.mul_(0.9)

    made = torch.optim.SGD(params, lr)
    for group in made.param_groups:
        for weight in group["params"]:
            weight.register_post_accumulate_grad_hook(move)
    return made


class Moving:
    """A section of the user's own, which leaves a hook behind and a callback of Setpoint's."""

    class Config(Config):
        rate: float = 0.9

    def __new__(cls, config: Moving.Config, *, components: Any, **_: Any) -> Any:
        weight = next(components.model.parameters()).data

        def move(*_: Any) -> None:
            weight.mul_(config.rate)

        components.model.register_forward_pre_hook(move)
        return Callback()


@pytest.fixture
def moving() -> Iterator[None]:
    with sections(Job, moving=Moving.Config):
        yield


allow_imports(__name__)
RENORMED = "{type=import, target=torch.nn.Embedding, num_embeddings=257, embedding_dim=257"


@pytest.mark.parametrize(
    ("overlaps", "flags"),
    [
        (True, ("model.dropout=0.2", "optimizer.clip_norm=0.1")),
        (True, ("model.moe={experts=4, router={type=sigmoid_top_k, bias_rate=0.5}}",)),
        (True, ("adapter={type=relora, rank=2, merge={every=2 steps}}",)),
        (False, ("optimizer={type=schedule_free_adamw}", "schedule=none")),
        (False, (f"model={RENORMED}, max_norm=1.0}}",)),
        (False, (f"optimizer={{type=import, target={__name__}.moving_weights}}",)),
        (False, ("moving.rate=0.9",)),
    ],
)
@pytest.mark.usefixtures("moving")
def test_what_is_copied_during_a_step_is_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overlaps: bool, flags: tuple[str, ...]
) -> None:
    """It does not change before it is copied, however late; and the files are the same."""
    rest = (*IN_BACKGROUND, "checkpoint.every=1 steps", "duration=5 steps", *flags)
    still: list[tuple[torch.Tensor, torch.Tensor]] = []
    save, settle = CheckpointStore.save, CheckpointStore.finish_copies

    def saving(store: CheckpointStore, *given: Any, **named: Any) -> None:
        save(store, *given, **named)
        still.extend((each, each.detach().clone()) for each in named["unchanged"])

    def settling(store: CheckpointStore) -> None:
        for now, before in still:
            assert torch.equal(now, before)
        still.clear()
        settle(store)

    monkeypatch.setattr(CheckpointStore, "save", saving)
    monkeypatch.setattr(CheckpointStore, "finish_copies", settling)
    where = {mode: tmp_path / mode / "run" for mode in ("sync", "async")}
    without = ("type", "dim", "layers", "heads", "dropout") if RENORMED in flags[0] else ()
    with late_copies() as late:
        for mode, path in where.items():
            job = small_job(tmp_path / mode, *rest, f"checkpoint.mode={mode}", without=without)
            train(job, directory=path)
    assert_same_run(where["async"], where["sync"])
    assert any(late) == overlaps
    for file in (where["async"] / "checkpoints").glob("*/*.safetensors"):
        there = where["sync"] / "checkpoints" / file.parent.name / file.name
        assert file.read_bytes() == there.read_bytes(), file


def test_code_of_others_in_the_model_may_change_weights(tmp_path: Path) -> None:
    """As in models of transformers, which sections of Setpoint's own build."""
    job = small_job(tmp_path)
    loop = SimpleNamespace(job=job, components=build_components(job))
    assert can_overlap_save(cast("Loop", loop))
    part = next(each for each in loop.components.model.modules() if type(each) is torch.nn.Linear)
    part.__class__ = type("Linear", (torch.nn.Linear,), {"__module__": "theirs.layers"})
    assert not can_overlap_save(cast("Loop", loop))


def test_what_lies_in_host_memory_needs_no_stream_of_a_gpu() -> None:
    """Such as offloaded weights whose rows do not lie one after the other."""
    weight = torch.arange(6.0).view(2, 3).t()
    memory = HostMemory()
    memory.copy(torch.zeros(3, 2))
    memory.pinned = True  # from here on; locking pages needs a GPU itself
    memory.clear([weight])
    copied = memory.copy(weight)
    assert np.frombuffer(copied, np.float32).tolist() == weight.flatten().tolist()


def test_a_failed_write_ends_the_run_after_a_later_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, steps = Disk(monkeypatch, slow=8, broken=8), list[int]()
    advance = Loop.advance

    def advancing(loop: Loop, *given: Any) -> None:
        advance(loop, *given)
        steps.append(loop.position.step)
        if loop.position.step == 10:
            disk.opens.set()

    monkeypatch.setattr(Loop, "advance", advancing)
    with refused(RunError):
        train(small_job(tmp_path, *IN_BACKGROUND, "duration=1000 steps"))
    run = run_of(tmp_path)
    assert 10 <= steps[-1] <= 12, "a step further, or the next save that finds no place"
    assert [row["step"] for row in events(run, "save")] == [4]
    assert list(list_checkpoints(run / "checkpoints")) == [4]
    assert not unfinished(run / "checkpoints")
    assert (run / "checkpoints" / "latest").read_text() == "step-00000004\n"


def test_a_failed_write_of_the_last_checkpoint_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Disk(monkeypatch, broken=12)
    with refused(RunError):
        train(small_job(tmp_path, *IN_BACKGROUND))


@pytest.mark.parametrize("broken", [None, 8])
def test_what_was_begun_is_saved_where_a_run_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: int | None
) -> None:
    """And what cannot be saved is said beside the error that ends the run."""
    disk, launch = Disk(monkeypatch, slow=8, broken=broken), Loop.launch

    def failing(loop: Loop) -> Any:
        if loop.position.step == 9:
            disk.opens.set()
            raise RuntimeError("the model broke")
        return launch(loop)

    monkeypatch.setattr(Loop, "launch", failing)
    with pytest.raises(RuntimeError, match="the model broke"):
        train(small_job(tmp_path, *IN_BACKGROUND))
    run = run_of(tmp_path)
    found = [row["step"] for row in events(run, "save")]
    faults = [(row["step"], row["error"][:34]) for row in events(run, "fault")]
    ends = (9, "RuntimeError('the model broke')")
    if broken is None:
        assert (found, faults) == ([4, 8], [ends])
    else:
        assert (found, faults) == ([4], [(8, "the checkpoint of step 8 could not"), ends])
    for directory in list_checkpoints(run / "checkpoints").values():
        verify_directory(directory)


def test_a_write_that_takes_too_long_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, slow=12)
    threads: list[Any] = []
    made = CheckpointStore.__init__

    def making(store: CheckpointStore, *given: Any, **named: Any) -> None:
        made(store, *given, **named)
        threads.append(store._thread._thread)

    monkeypatch.setattr(CheckpointStore, "__init__", making)
    with refused(RunError):
        train(small_job(tmp_path, *IN_BACKGROUND, "checkpoint.wait_timeout=0.01"))
    root = run_of(tmp_path) / "checkpoints"
    # What the disk does later makes no checkpoint of it.
    disk.opens.set()
    threads[0].join(60)
    assert list(list_checkpoints(root)) == [4, 8] and not unfinished(root)


def test_saves_given_up_leave_the_next_writer_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second begins after the first was discarded, when another process may have the lock."""
    disk = Disk(monkeypatch, slow=10)
    store = store_at(tmp_path, in_flight=2)
    store.prepare()
    for step in (10, 20):
        store.save(step, {"model": {"w": torch.zeros(4)}}, {})
    with refused(RunError):
        store.wait(0.01)
    other = tmp_path / "step-00000030.tmp-1"
    other.mkdir()
    disk.opens.set()
    thread: Any = store._thread._thread
    store.close()
    thread.join(60)
    assert list(tmp_path.iterdir()) == [other]


def test_a_limited_number_of_copies_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_flight = 3
    disk, store = Disk(monkeypatch, slow=0), store_at(tmp_path, in_flight)
    weights, saved = torch.zeros(3), list[str]()

    def save(step: int) -> None:
        weights.fill_(step)
        tensors = {"model": {"w": weights}}
        store.save(step, tensors, {}, on_saved=lambda path: saved.append(path.name))

    for step in range(in_flight):
        save(step)
        store.poll()
    assert store.is_writing and not saved
    stage = store._stage

    def staging_copy(*given: Any) -> Any:
        assert len(saved) == 1, "nothing is copied before a save has ended"
        return stage(*given)

    monkeypatch.setattr(store, "_stage", staging_copy)
    disk.opens.set()
    save(in_flight)
    # Loading waits for pending saves.
    found = store.load_newest()
    assert found is not None and found.step == in_flight
    assert torch.equal(in_memory(found.tensors["model"]["w"]), torch.full((3,), float(in_flight)))
    assert len(saved) == in_flight + 1 and not store.is_writing
    assert not store.close()


def test_a_kept_stop_request_keeps_no_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, memories = HostMemory.__init__, list[ref[HostMemory]]()

    def making(memory: HostMemory, *given: Any) -> None:
        made(memory, *given)
        memories.append(ref(memory))

    monkeypatch.setattr(HostMemory, "__init__", making)
    stop = StopRequest()
    train(small_job(tmp_path, *IN_BACKGROUND), stop=stop)
    gc.collect()
    assert [memory() for memory in memories] == [None]
    assert not stop.writing()


def test_too_little_memory_for_a_copy_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tensors = store_at(tmp_path, 2), {"model": {"w": torch.ones(500_000)}}
    store.save(1, tensors, {})
    store.wait()

    error = RuntimeError("can't allocate memory: you tried to allocate 2000000 bytes")
    monkeypatch.setattr(HostMemory, "copy", MagicMock(side_effect=error))
    with refused(RunError) as caught:
        store.save(2, tensors, {})
    assert "you tried to allocate" in str(caught.value.__cause__)


def test_too_little_memory_to_write_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a synchronous save that copies a tensor from a GPU."""
    monkeypatch.setattr(tensor_file, "_in_host_memory", MagicMock(side_effect=MemoryError))
    store = CheckpointStore(tmp_path)
    with refused(RunError):
        store.save(1, {"model": {"w": torch.ones(3)}}, {})
    assert not list(tmp_path.iterdir())


def test_the_loss_of_other_ranks_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any) -> Any:
        raise RuntimeError("[/gloo/tcp/pair.cc:553] Connection closed. This is typically a bug. 🏖️")

    store = store_at(tmp_path)
    monkeypatch.setattr(store, "_write", lost)
    store.save(1, {"model": {}}, {})
    place = f"the checkpoint of step 1 could not be saved in {store.root}"
    assert store.close() == [(1, f"{place}: Connection closed; there was none before it")]


def test_pages_are_locked_for_a_gpu_alone(tmp_path: Path) -> None:
    with refused(ConfigError):
        small_job(tmp_path, "checkpoint.mode=async_pinned", "parallel.device=cpu")


def test_two_ranks_save_in_the_background() -> None:
    run_on_ranks(
        2,
        a_run_saves_the_same,
        steps_do_not_shorten_how_long_writers_wait,
        a_failed_write_ends_the_run_on_all_ranks,
        too_little_memory_is_said_in_words_on_all_ranks,
    )
