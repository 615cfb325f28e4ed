import pytest
import torch

from setpoint.model.block_modules import FeedForward
from setpoint.model.initialize import initialize

from . import reference
from .small import small_config


@pytest.mark.parametrize("name", reference.ACTIVATIONS)
@pytest.mark.parametrize("bias", [False, True])
def test_against_plain_mathematics(name, bias):
    torch.manual_seed(0)
    config = small_config(activation=name, ffn_bias=bias)
    layer = FeedForward(config).double()
    x = 20 * torch.randn(2, 5, config.dim).double()
    weights = layer.state_dict()
    torch.testing.assert_close(layer(x), reference.feed_forward(weights, x, name))
    assert ("gate.weight" in weights) == ("glu" in name)
    assert ("down.bias" in weights) == bias


def test_width_and_biases_may_be_others_than_the_models():
    layer = FeedForward(small_config(ffn_bias=True), 7, bias=False)
    assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == {
        "gate.weight": (7, 24),
        "up.weight": (7, 24),
        "down.weight": (24, 7),
    }


def test_biases_start_at_zero_and_do_not_shift_the_other_draws():
    plain, biased = FeedForward(small_config()), FeedForward(small_config(ffn_bias=True))
    initialize(plain, 1)
    initialize(biased, 1)
    assert not biased.up.bias.any() and not biased.down.bias.any()
    assert torch.equal(plain.up.weight, biased.up.weight)


def test_gradients_of_the_input_are_summed_from_up_to_gate():
    """As in all curves that are kept; sums of adapters' products depend on the order."""
    layer, order = FeedForward(small_config()), []
    for name in ("gate", "up"):
        module = layer.get_submodule(name)
        module.register_forward_hook(lambda *_, name=name: order.append(name))
    layer(torch.randn(2, 5, 24))
    assert order == ["gate", "up"]
