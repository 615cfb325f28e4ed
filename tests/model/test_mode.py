import pytest
from torch import nn

from setpoint.model.layers import evaluating


def test_each_module_returns_to_its_own_mode():
    model = nn.Sequential(nn.Dropout(), nn.Dropout())
    model.train()
    model[1].eval()
    with pytest.raises(KeyError), evaluating(model):
        assert not any(module.training for module in model.modules())
        raise KeyError
    assert [module.training for module in model.modules()] == [True, True, False]
