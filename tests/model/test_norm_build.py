import pytest
import torch

from setpoint.config.components import partial
from setpoint.model.block_modules import build_norm
from setpoint.model.config import LayerNormConfig, RMSNormConfig

from .small import small_config


@pytest.mark.parametrize(
    ("norm", "name"),
    [
        (RMSNormConfig(), "RMSNorm"),
        (LayerNormConfig(), "LayerNorm"),
        (partial(torch.nn.Tanh), "Tanh"),
    ],
)
def test_each_variant_builds_its_norm(norm, name):
    made = build_norm(small_config(norm=norm), 24)
    assert type(made).__name__ == name
    assert made(torch.zeros(2, 24)).shape == (2, 24)


def test_each_call_makes_a_norm_of_its_own():
    config = small_config(norm_eps=0.25)
    one, other = build_norm(config, 24), build_norm(config, 8)
    assert one is not other
    assert (one.weight.shape, other.weight.shape) == ((24,), (8,))
    assert one.eps == other.eps == 0.25
