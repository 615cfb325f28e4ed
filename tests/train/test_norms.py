"""Norms of gradients, weights and updates, by group and by layer."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from setpoint.optim.clip import norms_of_sets
from setpoint.resilience.signals import StopRequest
from setpoint.train.build.components import build_components
from setpoint.train.loop import Loop
from setpoint.train.position import Position
from setpoint.train.run import train

from .small import rows, small_job

ALL = (
    "tracking.metrics.grad_norms=[groups, layers]",
    "tracking.metrics.param_norms=[model, groups, layers]",
    "tracking.metrics.update_ratios=[model, groups, layers]",
)
SHORT = ("model.layers=2", "model.dropout=0", "evaluation=null")


def test_norms_are_those_of_torch(tmp_path: Path) -> None:
    """Also where gradients are clipped, and over the micro-batches of a step."""
    job = small_job(tmp_path, *SHORT, *ALL, "optimizer.clip_norm=0.01")
    components = build_components(job)
    before = {name: each.detach().clone() for name, each in components.model.named_parameters()}
    loop = Loop(job, components, [], StopRequest(), Position())
    assert loop.engine.norms is not None
    result = loop.step()
    found = loop.engine.norms.columns()
    after = dict(components.model.named_parameters())

    def norm(tensors: Mapping[str, torch.Tensor], start: str = "") -> float:
        chosen = [each for name, each in tensors.items() if name.startswith(start)]
        return math.sqrt(sum(each.double().square().sum().item() for each in chosen))

    moved = {name: (after[name] - each).detach() for name, each in before.items()}
    assert found["param_norm"] == pytest.approx(norm(after), rel=1e-6)
    assert found["update_ratio"] == pytest.approx(norm(moved) / norm(before), rel=1e-5)
    for index in range(2):
        start = f"layers.{index}."
        assert found["param_norm_layers"][index] == pytest.approx(norm(after, start), rel=1e-6)
        ratio = norm(moved, start) / norm(before, start)
        assert found["update_ratio_layers"][index] == pytest.approx(ratio, rel=1e-5)
    names = ["embedding", "norm", "output"]
    layers = [*found["grad_norm_layers"], *(found[f"grad_norm_{name}"] for name in names)]
    for parts_of in (layers, [found["grad_norm_decay"], found["grad_norm_no_decay"]]):
        assert math.hypot(*parts_of) == pytest.approx(result.grad_norm, rel=1e-5)


def test_only_steps_with_rows_are_measured(tmp_path: Path) -> None:
    """They change no number, and a row by the clock has them, too."""
    flags = (*SHORT, "duration=5 steps", "tracking.every=2 steps")
    plain = rows(train(small_job(tmp_path / "plain", *flags)).directory)
    job = small_job(tmp_path / "norms", *flags, ALL[1])
    with pytest.MonkeyPatch.context() as patch:
        counted: list[int] = []
        name = "setpoint.train.row_metrics.norms_of_sets"
        patch.setattr(name, lambda *given: counted.append(1) or norms_of_sets(*given))
        found = rows(train(job).directory)
    assert [row["step"] for row in found] == [2, 4, 5] and len(counted) == 3
    assert all(row["param_norm"] > 0 for row in found)
    assert [{k: row[k] for k in old} for row, old in zip(found, plain, strict=True)] == plain
    [last] = rows(
        train(small_job(tmp_path / "time", *flags, ALL[1], "tracking.every=1 h")).directory
    )
    assert last["param_norm"] == found[-1]["param_norm"]


@pytest.mark.slow
def test_two_ranks_measure_what_one_does() -> None:
    program = [sys.executable, "-m", "tests.train.norm_ranks"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
