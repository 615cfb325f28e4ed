import pytest
import torch

from setpoint.model.attention import Attention
from setpoint.model.rope import rotation

from . import reference
from .small import small_config


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("head_dim", [6, 8])
def test_against_plain_mathematics(heads, kv_heads, head_dim):
    torch.manual_seed(0)
    config = small_config(heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    attention = Attention(config)
    x = torch.randn(2, 7, config.dim)
    positions = [3, 4, 5, 6, 7, 8, 9]
    y = attention(x, rotation(torch.tensor(positions), head_dim, config.rope_base))
    weights = {name: tensor.double() for name, tensor in attention.state_dict().items()}
    for row in range(2):
        expected = reference.attention(config, weights, x[row].double(), positions)
        torch.testing.assert_close(y[row].double(), expected, rtol=1e-5, atol=1e-5)


def test_gradients_against_plain_mathematics():
    torch.manual_seed(0)
    config = small_config()
    attention = Attention(config)
    x, grad = torch.randn(1, 5, config.dim, requires_grad=True), torch.randn(1, 5, config.dim)
    attention(x, rotation(torch.arange(5), config.head_dim, config.rope_base)).backward(grad)
    weights = {
        name: parameter.detach().double().requires_grad_()
        for name, parameter in attention.named_parameters()
    }
    exact = x.detach().double().requires_grad_()
    reference.attention(config, weights, exact[0], list(range(5))).backward(grad[0].double())
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=1e-4, atol=1e-5)
    for name, parameter in attention.named_parameters():
        torch.testing.assert_close(
            parameter.grad.double(), weights[name].grad, rtol=1e-4, atol=1e-5
        )
