"""What one job sets does not reach the next."""

from __future__ import annotations

import logging
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._logging._internal import warning_once

from setpoint.compile.apply import CACHE, KEPT, KERNELS, cached_in, compiling
from setpoint.compile.config import Compile
from setpoint.config import SetpointError, resolve
from setpoint.memory.checkpointing import contexts, recompute

from .models import compiled, stack, train_on


def state() -> list[object]:
    dynamo = torch._dynamo.config
    found = [dynamo.recompile_limit, dynamo.accumulated_recompile_limit]
    return [*found, os.environ.get(CACHE), os.environ.get(KERNELS)]


def section(**values: Any) -> Compile:
    return resolve(Compile(**values))


def test_settings_hold_for_one_job(tmp_path: Path) -> None:
    before = state()
    with compiling(section(recompile_limit=300, cache=tmp_path / "a")):
        assert state() == [300, 300, str(tmp_path / "a"), str(tmp_path / "a" / "triton")]
    assert state() == before
    with compiling(section(recompile_limit=2)):
        assert state() == [2, *before[1:]]
    assert state() == before


def test_a_job_that_fails_leaves_nothing(tmp_path: Path) -> None:
    before = state()
    with pytest.raises(ValueError, match="x"), compiling(section(cache=tmp_path / "a")):
        assert state() != before
        raise ValueError("x")
    assert state() == before


def test_graphs_of_an_earlier_job_do_not_count() -> None:
    for _ in range(3):
        model = stack()
        told = compiled(model, recompile_limit=1, dynamic=False)
        train_on(model, 4)
        assert told.take() == []


def test_what_pytorch_remembers_is_what_it_did_before() -> None:
    from torch._dynamo import utils

    def most() -> Any:
        return utils._compilation_metrics.maxlen  # pyright: ignore[reportPrivateUsage]

    utils.set_compilation_metrics_limit(utils.DEFAULT_COMPILATION_METRICS_LIMIT)
    before = most()
    with compiling(section()):
        assert most() > before
    assert most() == before


def test_a_folder_of_the_users_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE, "theirs")
    with cached_in(tmp_path):
        assert os.environ[CACHE] == str(tmp_path)
    assert os.environ[CACHE] == "theirs"


def test_an_impossible_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    impossible = section(cache=tmp_path / "file" / "below")
    with pytest.raises(SetpointError, match="is no folder"), compiling(impossible):
        pass


class InPlace(torch.nn.Module):
    """A layer that changes what a product of matrices has given."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Linear(8, 16, dtype=torch.float64)
        self.narrow = torch.nn.Linear(16, 8, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        return x + self.narrow(self.wide(x).mul_(1.5).sigmoid_()).mul_(0.5)


def gradients(backend: str | None) -> list[Tensor | None]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(InPlace(), InPlace())
    if backend is not None:
        for layer in model:
            recompute(layer, keep=partial(contexts, ["matmul"], 1))
        model.compile(backend=backend)
    x = torch.linspace(-1, 1, 32, dtype=torch.float64).view(4, 8).requires_grad_() * 1
    model(x).square().sum().backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition"])
def test_what_pytorch_warns_of_does_no_harm_and_is_not_said(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept results of operators, in compiled layers that work in place."""
    said: list[str] = []
    logger = logging.getLogger("torch._higher_order_ops.wrap")
    monkeypatch.setattr(logger, "handle", lambda record: said.append(record.getMessage()))
    warning_once.cache_clear()
    torch._dynamo.reset()
    gradients(backend)
    assert len(said) == 1 and KEPT in said[0]
    monkeypatch.undo()
    monkeypatch.setattr(logger, "callHandlers", lambda record: said.append(record.getMessage()))
    warning_once.cache_clear()
    with compiling(section()):
        found = gradients(backend)
        logger.warning("another")
    assert said[1:] == ["another"]
    torch.testing.assert_close(found, gradients(None), rtol=1e-12, atol=1e-14)
    assert not logger.filters
