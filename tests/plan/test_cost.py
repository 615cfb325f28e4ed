"""What a run takes of all its GPUs, by hand."""

from __future__ import annotations

import pytest

from setpoint.config import SetpointError
from setpoint.plan.cost import cost_of


def test_the_first_limit_ends_the_run() -> None:
    cost = cost_of({"steps": 3600, "seconds": 7200.0}, step=1.0, ranks=8, price=2.5, power=700)
    assert cost is not None
    assert (cost.steps, cost.seconds, cost.gpu_hours) == (3600, 3600.0, 8.0)
    assert cost.money == 20.0
    assert cost.kilowatt_hours == pytest.approx(5.6)
    timed = cost_of({"steps": 10_000, "seconds": 7200.0}, step=1.5, ranks=1)
    assert timed is not None
    assert (timed.steps, timed.money, timed.kilowatt_hours) == (4800, None, None)
    assert cost_of({"epochs": 2}, step=1.0, ranks=1) is None


def test_a_run_without_a_step_is_refused() -> None:
    with pytest.raises(SetpointError) as raised:
        cost_of({"seconds": 60.0}, step=93.2, ranks=8)
    assert str(raised.value) == (
        "duration = 60 s ends before the first step, which is expected to take 93.2 s\n"
        "Valid: 94 s or more, or a duration in steps"
    )
