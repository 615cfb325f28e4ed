"""Generators that go on where they were."""

from __future__ import annotations

import random
from pathlib import Path

import numpy
import pytest
import torch

from setpoint.checkpoint import rng
from setpoint.checkpoint.rng import capture_rng, restore_rng
from setpoint.checkpoint.store import CheckpointStore


def draw() -> list[float]:
    numbers = [random.random(), random.gauss(0, 1), float(random.getrandbits(70))]
    numbers += [numpy.random.rand(), numpy.random.randn(), float(numpy.random.randint(1 << 40))]
    # A short normal leaves half a pair cached; a long one goes another way through the generator.
    return numbers + torch.randn(3).tolist() + torch.randn(40).tolist() + torch.rand(2).tolist()


def test_all_continue_after_a_checkpoint(tmp_path: Path) -> None:
    draw()
    random.gauss(0, 1)
    numpy.random.randn()
    tensors, state = capture_rng()
    store = CheckpointStore(tmp_path)
    store.save(1, {"rng": tensors}, {"rng": state})
    expected = [draw(), draw()]
    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)
    loaded = store.load("latest")
    assert restore_rng(loaded.tensors["rng"], loaded.state["rng"]) == []
    assert [draw(), draw()] == expected


def test_capturing_draws_nothing() -> None:
    torch.manual_seed(3)
    random.seed(3)
    numpy.random.seed(3)
    expected = draw()
    torch.manual_seed(3)
    random.seed(3)
    numpy.random.seed(3)
    capture_rng()
    assert draw() == expected


def test_another_global_numpy_generator() -> None:
    before = numpy.random.get_bit_generator()
    try:
        numpy.random.set_bit_generator(numpy.random.PCG64(5))
        tensors, state = capture_rng()
        expected = draw()
        restore_rng(tensors, state)
        assert draw() == expected
    finally:
        numpy.random.set_bit_generator(before)


def test_numpy_is_left_alone_if_nobody_imported_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(rng.sys.modules, "numpy")
    tensors, state = capture_rng()
    assert "numpy" not in state and set(tensors) == {"python", "torch"}


def test_generators_that_are_gone_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, state = capture_rng()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(rng.sys.modules, "numpy", None)
    tensors["cuda"] = torch.zeros(16, dtype=torch.uint8)
    assert restore_rng(tensors, state) == ["numpy", "cuda"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_continues() -> None:
    torch.randn(3, device="cuda")
    tensors, state = capture_rng()
    expected = torch.randn(5, device="cuda")
    restore_rng(tensors, state)
    assert torch.equal(torch.randn(5, device="cuda"), expected)
