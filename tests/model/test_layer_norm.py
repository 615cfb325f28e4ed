import pytest
import torch

from setpoint.config import resolve
from setpoint.model.block_modules import LayerNorm
from setpoint.model.config import LayerNormConfig
from setpoint.model.initialize import initialize


def made(dim: int, *, bias: bool = True, eps: float = 1e-3) -> LayerNorm:
    norm = LayerNorm(resolve(LayerNormConfig(bias=bias)), dim=dim, eps=eps)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    return norm


def plain(x, weight, bias, eps):
    centered = x - x.sum(-1, keepdim=True) / x.shape[-1]
    variance = (centered * centered).sum(-1, keepdim=True) / x.shape[-1]
    return centered / torch.sqrt(variance + eps) * weight + bias


@pytest.mark.parametrize("bias", [True, False])
def test_against_plain_mathematics(bias):
    torch.manual_seed(0)
    norm, x = made(33, bias=bias), torch.randn(5, 7, 33) * 3 + 2
    shift = norm.bias.double() if bias else torch.zeros(33).double()
    exact = plain(x.double(), norm.weight.double(), shift, 1e-3)
    torch.testing.assert_close(norm(x).double(), exact, rtol=1e-5, atol=1e-5)


def test_without_a_bias_there_is_none():
    assert [name for name, _ in made(4, bias=False).named_parameters()] == ["weight"]


def test_starts_as_the_identity_of_normalized_vectors():
    norm = made(16)
    initialize(norm, 0)
    x = torch.randn(3, 16)
    y = norm(x)
    torch.testing.assert_close(y.mean(-1), torch.zeros(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(y.var(-1, correction=0), torch.ones(3), rtol=0, atol=1e-2)


def test_bf16_takes_statistics_in_fp32():
    norm = made(512)
    x = (torch.randn(4, 512) * 50).bfloat16()
    y = norm(x)
    assert y.dtype == torch.bfloat16
    exact = plain(x.double(), norm.weight.double(), norm.bias.double(), 1e-3)
    torch.testing.assert_close(y.double(), exact, rtol=2e-2, atol=2e-2)
