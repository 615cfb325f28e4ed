import torch

from setpoint.model.feed_forward import FeedForward

from . import reference
from .small import small_config


def test_against_plain_mathematics():
    torch.manual_seed(0)
    config = small_config()
    layer = FeedForward(config)
    x = torch.randn(2, 5, config.dim)
    weights = {name: tensor.double() for name, tensor in layer.state_dict().items()}
    torch.testing.assert_close(
        layer(x).double(), reference.feed_forward(weights, x.double()), rtol=1e-5, atol=1e-5
    )
