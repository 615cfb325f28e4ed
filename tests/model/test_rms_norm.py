import pytest
import torch
from torch.nn import functional as F

from setpoint.config import resolve
from setpoint.model.block_modules import RMSNorm, rms_norm_cpu
from setpoint.model.config import RMSNormConfig
from setpoint.model.initialize import initialize

from . import reference


def made(dim: int, eps: float = 1e-5, *, zero_centered: bool = False) -> RMSNorm:
    norm = RMSNorm(resolve(RMSNormConfig(zero_centered=zero_centered)), dim=dim, eps=eps)
    torch.nn.init.normal_(norm.weight)
    return norm


def gradients(function, x, weight, grad):
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    y = function(x, weight)
    y.backward(grad.to(y.dtype))
    return y.detach(), x.grad, weight.grad


@pytest.mark.parametrize("shape", [(5, 7, 33), (1, 48), (2, 3, 4, 128)])
def test_values_and_gradients_against_float64(shape):
    torch.manual_seed(0)
    x, grad, norm = torch.randn(shape) * 3, torch.randn(shape), made(shape[-1], 1e-3)
    ours = gradients(
        lambda x, w: torch.func.functional_call(norm, {"weight": w}, (x,)), x, norm.weight, grad
    )
    exact = gradients(
        lambda x, w: reference.norm(x, w, 1e-3), x.double(), norm.weight.double(), grad
    )
    for a, b in zip(ours, exact, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def test_analytic_backward_against_finite_differences():
    x = torch.randn(3, 4, 9, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: rms_norm_cpu(x, w, 1e-2), (x, weight))


def test_awkward_memory_layouts():
    torch.manual_seed(0)
    weight = torch.randn(6)
    x = torch.randn(6, 5, 4).transpose(0, 2)
    grad = torch.randn(4, 1, 6).expand(4, 5, 6)
    ours = gradients(lambda x, w: rms_norm_cpu(x, w, 1e-5), x, weight, grad)
    torchs = gradients(lambda x, w: F.rms_norm(x, (6,), w, 1e-5), x, weight, grad)
    for a, b in zip(ours, torchs, strict=True):
        torch.testing.assert_close(a, b)


def test_zero_vectors_stay_finite():
    norm = made(8)
    x = torch.zeros(2, 8, requires_grad=True)
    y = norm(x)
    y.sum().backward()
    assert torch.equal(y, torch.zeros(2, 8))
    assert torch.isfinite(x.grad).all()


def test_bf16_keeps_its_dtype_and_takes_statistics_in_fp32():
    norm = made(512)
    x = (torch.randn(4, 512) * 50).bfloat16()
    y = norm(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(
        y.double(),
        reference.norm(x.double(), norm.weight.double(), 1e-5),
        rtol=1e-2,
        atol=1e-2,
    )


def test_autocast_leaves_fp32_alone_even_in_backward():
    torch.manual_seed(0)
    x, grad, norm = torch.randn(3, 16), torch.randn(3, 16), made(16)
    plain = gradients(lambda x, w: rms_norm_cpu(x, w, 1e-5), x, norm.weight, grad)
    with torch.autocast("cpu", torch.bfloat16):
        cast = gradients(lambda x, w: rms_norm_cpu(x, w, 1e-5), x, norm.weight, grad)
    for a, b in zip(plain, cast, strict=True):
        assert torch.equal(a, b)


def test_a_zero_centered_weight_counts_from_one():
    torch.manual_seed(0)
    x, norm = torch.randn(3, 16), made(16, zero_centered=True)
    exact = reference.norm(x.double(), 1 + norm.weight.double(), 1e-5)
    torch.testing.assert_close(norm(x).double(), exact, rtol=1e-5, atol=1e-5)
    initialize(norm, 0)
    assert torch.equal(norm.weight, torch.zeros(16))
    plain = made(16)
    initialize(plain, 0)
    assert torch.equal(norm(x), plain(x))


def test_a_small_zero_centered_weight_survives_bf16():
    norm = made(16, zero_centered=True)
    torch.nn.init.constant_(norm.weight, 0.001)
    norm = norm.bfloat16()
    x = torch.randn(64, 16, dtype=torch.float32)
    ratio = norm(x) / made_identity(x)
    torch.testing.assert_close(ratio, torch.full_like(ratio, 1.001), rtol=1e-5, atol=1e-5)


def made_identity(x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), eps=1e-5)
