import pytest
from torch import nn

from setpoint.config import SetpointError
from setpoint.optim.grouping import OwnRates, multipliers_of


class Slow(nn.Linear):
    """Knows how fast it learns."""

    def __init__(self, rates: dict[str, float]) -> None:
        super().__init__(2, 2)
        self.rates = rates

    def learning_rate_multipliers(self) -> dict[str, float]:
        return self.rates


def test_a_model_without_any():
    assert not isinstance(nn.Linear(2, 2), OwnRates)
    assert multipliers_of(nn.Linear(2, 2)) == {}


def test_a_model_that_has_some():
    assert multipliers_of(Slow({"bias": 0.5})) == {"bias": 0.5}


def test_a_name_that_is_not_there_is_refused():
    with pytest.raises(SetpointError, match=r"not there: wait"):
        multipliers_of(Slow({"wait": 0.5}))
