"""What a checkpoint holds is all that the rest of a run depends on."""

from __future__ import annotations

import random
from pathlib import Path

import numpy
import pytest
import torch

from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import SetpointError
from setpoint.resilience.signals import StopRequest
from setpoint.shapes.placed import in_memory
from setpoint.train.build.components import Components, build_components
from setpoint.train.config import Job
from setpoint.train.loop import Loop
from setpoint.train.position import Position
from setpoint.train.run_state import restore, snapshot

from ..checkpoint.stored import load
from .small import small_job, states


def advance(
    job: Job, components: Components, position: Position, steps: int
) -> tuple[Position, list[float]]:
    loop = Loop(job, components, [], StopRequest(), position)
    losses: list[float] = []
    components.model.train()
    for _ in range(steps):
        loop.pending = loop.take_step()
        loop.advance(0.5)
        result = loop.complete_pending()
        losses.append(result.loss)
    return loop.position, losses


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_the_same_run_goes_on(tmp_path: Path, compute: str) -> None:
    """The oracle is the continuation of the very objects that were saved."""
    job = small_job(tmp_path, f"precision.compute={compute}")
    components = build_components(job)
    position, _ = advance(job, components, Position(), 5)
    store = CheckpointStore(tmp_path / "checkpoints")
    with snapshot(states(job, components), position) as taken:
        store.save(position.step, taken.tensors, taken.state)
    state = taken.state
    expected = advance(job, components, position, 4)
    noise = (random.random(), numpy.random.rand(), torch.rand(1).item())

    torch.manual_seed(99)
    fresh = build_components(job)
    checkpoint = load(store.root, "latest")
    restored = restore(job, states(job, fresh), checkpoint)
    assert restored == position
    # Nothing was added to or lost from what was saved.
    with snapshot(states(job, fresh), restored) as found:
        again = found.tensors
    assert found.state == state
    for stem in taken.tensors:
        assert again[stem].keys() == checkpoint.tensors[stem].keys()
        for name, tensor in checkpoint.tensors[stem].items():
            assert torch.equal(again[stem][name], in_memory(tensor))
            assert again[stem][name].dtype == tensor.dtype
    assert advance(job, fresh, restored, 4) == expected
    assert (random.random(), numpy.random.rand(), torch.rand(1).item()) == noise
    for ours, theirs in zip(fresh.model.parameters(), components.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("model.dim=32", "does not fit the model"),
        ("model.layers=2", "is missing"),
        ("seed=5", "seed"),
        ("data.held_out=0.4", "data.sources"),
        ("batch.sequence_length=8", "batch.sequence_length"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, flag: str, words: str) -> None:
    job = small_job(tmp_path)
    components = build_components(job)
    store = CheckpointStore(tmp_path / "checkpoints")
    with snapshot(states(job, components), Position()) as taken:
        store.save(0, taken.tensors, taken.state)
    with pytest.raises(SetpointError, match=words):
        components = build_components(small_job(tmp_path, flag))
        restore(job, states(job, components), load(store.root, "latest"))
