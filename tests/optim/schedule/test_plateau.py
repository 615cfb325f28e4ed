"""The plateau against torch's own."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau

from setpoint.config import resolve
from setpoint.optim.schedule.config import Plateau
from setpoint.optim.schedule.curves import PlateauCurve

from ...support.cases import few


def torchs(values: list[float], **options: Any) -> list[float]:
    """The factors after each value, by torch."""
    optimizer = SGD([nn.Parameter(nn.Parameter().new_zeros(1))], lr=1.0)
    schedule = ReduceLROnPlateau(optimizer, threshold_mode="rel", eps=0.0, **options)
    found = []
    for value in values:
        schedule.step(value)
        found.append(optimizer.param_groups[0]["lr"])
    return found


def metrics(draw: random.Random) -> list[float]:
    """Values that get better, then stand still, with slips; some are no numbers."""
    level, found = 5.0, []
    for _ in range(draw.randrange(1, 60)):
        level *= draw.choice((0.9, 0.9999, 1.0, 1.0, 1.0001, 1.01))
        found.append(draw.choice((level, level, level, level, level, math.nan, math.inf)))
    return found


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("seed", few(range(150), every=5))
def test_against_torch(mode: str, seed: int) -> None:
    draw = random.Random(f"{mode}{seed}")
    values = metrics(draw)
    if mode == "max":
        values = [1 / value for value in values]
    options: dict[str, Any] = {
        "factor": draw.choice((0.1, 0.5, 0.9)),
        "patience": draw.randrange(4),
        "threshold": draw.choice((0.0, 1e-4, 1e-2, 0.3)),
        "cooldown": draw.randrange(3),
    }
    floor = draw.choice((0.0, 0.05, 0.4))
    monitor = {"min": "held_out.loss", "max": "held_out.accuracy"}[mode]
    section = resolve(Plateau(monitor=monitor, floor=floor, **options))
    curve = PlateauCurve(section)
    ours: list[float] = []
    for value in values:
        curve.observe(value)
        ours.append(curve(0))
        # A state that went through a file goes on as if nothing had happened.
        state = json.loads(json.dumps(curve.state_dict(), allow_nan=False))
        curve = PlateauCurve(section)
        curve.load_state_dict(state)
    assert ours == torchs(values, mode=mode, min_lr=floor, **options)


def test_the_sequences_of_the_test_lower_the_rate() -> None:
    draw = random.Random("min0")
    falls = {len(set(torchs(metrics(draw), patience=1, factor=0.5))) for _ in range(50)}
    assert max(falls) > 4


def test_the_warmup_goes_on_beside_it() -> None:
    curve = resolve(Plateau(warmup=4, patience=0, factor=0.5)).build()
    assert [curve(step) for step in range(5)] == [0.25, 0.5, 0.75, 1, 1]
    curve.observe(1.0)
    curve.observe(1.0)
    assert [curve(step) for step in range(5)] == [0.125, 0.25, 0.375, 0.5, 0.5]


def test_values_of_another_metric_are_forgotten() -> None:
    options: dict[str, Any] = {"patience": 1, "threshold": 0.0}
    one = resolve(Plateau(monitor="held_out.loss", **options)).build()
    for value in (2.0, 2.0, 2.0, 2.0):
        one.observe(value)
    other = resolve(Plateau(monitor="held_out.accuracy", **options)).build()
    other.load_state_dict(one.state_dict())
    assert (other.level, other.best, other.waited) == (0.5, None, 0)


@pytest.mark.parametrize(
    ("recorded", "kept"), [("held_out every 2 steps", True), ("web every 2 steps", False)]
)
def test_values_of_another_text_are_forgotten(recorded: str, kept: bool) -> None:
    section = Plateau(patience=5)
    section.evaluated_on = "held_out every 2 steps"
    one, other = resolve(section).build(), resolve(section).build()
    for value in (2.0, 3.0):
        one.observe(value)
    other.load_state_dict({**one.state_dict(), "evaluated_on": recorded})
    assert (other.best, other.waited) == ((2.0, 1) if kept else (None, 0))


def test_more_is_better_for_accuracy_only() -> None:
    names = ("loss", "perplexity", "bits_per_byte", "accuracy")
    found = [resolve(Plateau(monitor=f"my.web-1.{name}")).direction for name in names]
    assert found == ["min", "min", "min", "max"]
