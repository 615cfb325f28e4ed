import pytest
import torch

from setpoint.model.moe.losses import expert_metrics
from setpoint.shapes.outcome import Routing


def test_of_two_layers() -> None:
    counts = torch.tensor([[4, 4, 4, 4], [12, 4, 0, 0]])
    terms = (torch.tensor(2.5), torch.tensor(3.0), torch.tensor(8.0))
    found = expert_metrics(Routing(counts, torch.tensor([0, 8]), *terms))
    assert found == {
        "expert_load": pytest.approx((1 + 3) / 2),
        "expert_load_worst": 3.0,
        "experts_idle": 2.0,
        "expert_drops": 0.25,
        "balance_loss": 1.25,
        "sequence_balance_loss": 1.5,
        "router_z_loss": 4.0,
    }


def test_of_nothing_but_padding() -> None:
    zero = torch.tensor(0.0)
    found = expert_metrics(
        Routing(torch.zeros(1, 2, dtype=torch.int64), torch.tensor([0]), *[zero] * 3)
    )
    assert found["experts_idle"] == 2
    assert all(value == value for value in found.values())
