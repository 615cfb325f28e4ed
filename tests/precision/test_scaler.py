"""Skipped updates are counted, survive a checkpoint, and end where no scale helps."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from setpoint.config import RunError, resolve
from setpoint.precision.config import LossScale
from setpoint.precision.mixed_precision import LEAST, LossScaler


def update(scaler: LossScaler, factor: float = 1.0) -> tuple[bool, torch.Tensor]:
    """One step on the square of a weight of 1; whether it was made, and the weight."""
    weight = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([weight], lr=0.25)
    scaler.scale(weight.square() * factor).backward()
    scaler.unscale_(optimizer)
    overflows = any(scaler.overflows(optimizer))
    if not overflows:
        optimizer.step()
    before = scaler.get_scale()
    scaler.update()
    if overflows:
        scaler.skip(before)
    return not overflows, weight.detach()


def scaler_of(**options: float) -> LossScaler:
    return LossScaler("cpu", resolve(LossScale(**options)))  # pyright: ignore[reportArgumentType]


def test_without_it_every_update_is_made() -> None:
    scaler = LossScaler("cpu", enabled=False)
    assert update(scaler) == (True, torch.tensor(0.5))
    assert scaler.metrics() == scaler.state_dict() == {}
    assert math.isnan(update(scaler, math.nan)[1])


def test_a_scale_is_taken_away_again() -> None:
    scaler = scaler_of(initial=1024.0)
    assert update(scaler) == (True, torch.tensor(0.5))
    assert scaler.metrics() == {"loss_scale": 1024.0, "skipped_steps": 0}


def test_the_section_is_what_pytorch_s_scaler_gets() -> None:
    ours = scaler_of(initial=8.0, growth=3.0, backoff=0.25, growth_interval=2).state_dict()
    theirs = torch.amp.GradScaler(
        "cpu", init_scale=8.0, growth_factor=3.0, backoff_factor=0.25, growth_interval=2
    )
    assert ours == {**theirs.state_dict(), "skipped": 0}
    plain = torch.amp.GradScaler("cpu").state_dict()
    assert LossScaler("cpu").state_dict() == {**plain, "skipped": 0}
    assert scaler_of().state_dict() == {**plain, "skipped": 0}


def test_an_overflow_is_skipped_and_counted() -> None:
    scaler = scaler_of(initial=2.0**127, backoff=0.5, growth_interval=1)
    made, weight = update(scaler, 8.0)
    assert (made, weight) == (False, torch.tensor(1.0))
    assert scaler.metrics() == {"loss_scale": 2.0**126, "skipped_steps": 1}
    assert update(scaler, 0.25)[0]
    assert scaler.metrics() == {"loss_scale": 2.0**127, "skipped_steps": 1}
    other = scaler_of()
    other.load_state_dict(scaler.state_dict())
    assert other.metrics() == scaler.metrics()
    other.load_state_dict({k: v for k, v in scaler.state_dict().items() if k != "skipped"})
    assert other.skipped == 0


def test_a_scale_that_cannot_help_ends_the_run() -> None:
    scaler = scaler_of(initial=2 * LEAST)
    assert not update(scaler, math.inf)[0]
    with pytest.raises(RunError, match="not finite even with the loss scaled by 6.10352e-05; 2 st"):
        update(scaler, math.nan)


def test_settings_are_those_of_today_and_only_counts_come_back() -> None:
    before = scaler_of(initial=8.0, growth=2.0, backoff=0.5, growth_interval=100)
    assert update(before)[0]
    after = scaler_of(initial=4.0, growth=3.0, backoff=0.25, growth_interval=10)
    after.load_state_dict(before.state_dict())
    assert after.state_dict() == {
        "scale": 8.0, "growth_factor": 3.0, "backoff_factor": 0.25, "growth_interval": 10,
        "_growth_tracker": 1, "skipped": 0,
    }  # fmt: skip
    # A run that did not scale before begins as configured.
    fresh = scaler_of(initial=4.0)
    fresh.load_state_dict({})
    assert fresh.get_scale() == 4.0
