"""What an engine does with a step, and how often it waits for the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from setpoint.config import resolve
from setpoint.precision.config import LossScale
from setpoint.precision.scaler import LossScaler
from setpoint.train.build.components import Components, build_components
from setpoint.train.step.engine import Finished, PlainEngine, Rates, Verdict

from ..small import small_job


class Reads(TorchDispatchMode):
    """Counts how often a number of a tensor is read on its own."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def finished(
    folder: Path, scale: float | None = None, factor: float = 1.0, *flags: str
) -> tuple[Finished, Components, Reads]:
    """One step, whose first gradient is multiplied by a factor."""
    job = small_job(folder, "model.dropout=0", *flags)
    parts = build_components(job)
    if scale is not None:
        parts.scaler = LossScaler("cpu", resolve(LossScale(initial=scale)))
    next(parts.model.parameters()).register_hook(lambda gradient: gradient * factor)
    engine, step = PlainEngine(job, parts), parts.feed.take()
    sums = engine.forward_backward(step, step.whole)
    with Reads() as reads:
        return engine.finish(sums, Rates(1e-3, 0.0)), parts, reads


def weights(parts: Components) -> list[Tensor]:
    return [p.detach().clone() for p in parts.model.parameters()]


@pytest.mark.parametrize(
    ("scale", "factor", "verdict"),
    [
        (None, 1.0, Verdict.TAKEN),
        (1024.0, 1.0, Verdict.TAKEN),
        (1024.0, math.inf, Verdict.SKIPPED),
        (None, math.inf, Verdict.REFUSED),
    ],
)
def test_verdicts(tmp_path: Path, scale: float | None, factor: float, verdict: Verdict) -> None:
    before = weights(build_components(small_job(tmp_path, "model.dropout=0")))
    ended, parts, _ = finished(tmp_path, scale, factor)
    assert ended.verdict is verdict
    same = [torch.equal(a, b) for a, b in zip(weights(parts), before, strict=True)]
    assert not any(same) if verdict is Verdict.TAKEN else all(same)
    assert parts.scaler.skipped == (verdict is Verdict.SKIPPED)
    assert math.isfinite(ended.grad_norm) == (factor == 1)


@pytest.mark.parametrize("optimizer", ["adamw", "lion"])
@pytest.mark.parametrize("scale", [None, 1024.0])
def test_numbers_come_to_the_host_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: float | None, optimizer: str
) -> None:
    # On a CPU clipping looks at the norm, which waits for nothing there.
    monkeypatch.setattr("setpoint.optim.clip._is_within", lambda *_: False)
    ended, _, reads = finished(tmp_path, scale, 1.0, f"optimizer={optimizer}")
    assert ended.verdict is Verdict.TAKEN
    # Together they are a list; one that is read alone makes a GPU finish its work once more.
    assert reads.count == 0
