from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from setpoint.config import resolve
from setpoint.config.component_sections import partial
from setpoint.config.values.user_code import allow_imports
from setpoint.model.block_modules import FeedForward, LayerNorm, RMSNorm, cast_once, rms_norm_cpu
from setpoint.model.config import LayerNormConfig, RMSNormConfig
from setpoint.model.initialize import ConstantInit, initialize
from setpoint.model.transformer import Transformer

from ..support.snapshots import refused
from .small import VOCAB, small_config


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
        lambda x, w: F.rms_norm(x, w.shape, w, 1e-3), x.double(), norm.weight.double(), grad
    )
    for a, b in zip(ours, exact, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


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
        y.double(), F.rms_norm(x.double(), (512,), norm.weight.double(), 1e-5), rtol=1e-2, atol=1e-2
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
    exact = F.rms_norm(x.double(), (16,), 1 + norm.weight.double(), 1e-5)
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


def layer_norm(dim: int, *, bias: bool = True, eps: float = 1e-3) -> LayerNorm:
    norm = LayerNorm(resolve(LayerNormConfig(bias=bias)), dim=dim, eps=eps)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    return norm


def test_bf16_takes_statistics_in_fp32():
    norm = layer_norm(512)
    x = (torch.randn(4, 512) * 50).bfloat16()
    y = norm(x)
    assert y.dtype == torch.bfloat16
    exact = F.layer_norm(x.double(), (512,), norm.weight.double(), norm.bias.double(), 1e-3)
    torch.testing.assert_close(y.double(), exact, rtol=2e-2, atol=2e-2)


allow_imports(__name__)


class Scale(nn.Module):
    """A norm of the user's own: each vector over its largest component, times drawn weights."""

    def __init__(self, dim: int, eps: float, power: float = 1.0) -> None:
        super().__init__()
        self.eps, self.power = eps, power
        self.gain = nn.Parameter(torch.rand(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.abs().amax(-1, keepdim=True) + self.eps) ** self.power * self.gain


class Ruled(Scale):
    """One that says itself how it starts."""

    def initializers(self) -> dict[str, ConstantInit]:
        return {"gain": ConstantInit(3.0)}


def model_with(target: Any, **arguments: Any) -> Transformer:
    section: Any = partial(target, **arguments)
    return small_config(norm=section).build(vocab_size=VOCAB)


def test_it_gets_the_width_and_eps():
    model: Any = model_with(Scale, power=0.5)
    assert model.norm.gain.shape == (24,)
    assert model.norm.eps == 1e-5
    assert model.norm.power == 0.5
    ids = {id(layer.attention_norm.gain) for layer in model.layers.values()}
    assert len(ids) == 2, "each norm has parameters of its own"


def test_torchs_own_norms_take_the_width_by_their_name():
    model: Any = model_with(nn.LayerNorm, bias=False)
    assert model.norm.normalized_shape == (24,)
    assert model.norm.bias is None
    initialize(model, 1)
    assert model(torch.arange(6)[None]).shape == (1, 6, VOCAB)


def test_it_keeps_the_values_it_gives_itself_through_the_meta_device():
    torch.manual_seed(5)
    model: Any = model_with(Scale)
    drawn = model.norm.gain.detach().clone()
    initialize(model, 1)
    assert torch.equal(model.norm.gain, drawn)
    torch.manual_seed(5)
    section: Any = partial(Scale)
    with torch.device("meta"):
        other: Any = Transformer(small_config(norm=section), vocab_size=VOCAB)
    assert other.norm.gain.is_meta
    other.to_empty(device="cpu")
    initialize(other, 1)
    assert torch.equal(other.norm.gain, drawn)


def test_its_own_rules_come_first():
    model: Any = model_with(Ruled)
    initialize(model, 1)
    assert torch.equal(model.norm.gain, torch.full((24,), 3.0))


class Halves(nn.Module):
    """No norm: it changes the shape."""

    def forward(self, x: Tensor) -> Tensor:
        return x[..., ::2]


class Tokens(nn.Module):
    """No norm: it takes two arguments."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


@pytest.mark.parametrize("target", [Halves, Tokens, dict])
def test_what_is_no_norm(target: Any):
    with refused():
        model_with(target)


def test_an_argument_that_the_model_hands_over_is_refused():
    section: Any = partial(nn.LayerNorm, eps=0.1)
    with refused():
        resolve(small_config(norm=section)).build(vocab_size=VOCAB)


def test_the_clamped_gate_of_gpt_oss():
    layer = FeedForward(small_config(activation="swiglu_clamped"), 0).double()
    x = 20 * torch.randn(2, 5, 24).double()
    gate, up = layer.gate(x).clamp(max=7), layer.up(x).clamp(-7, 7)
    expected = layer.down(gate * torch.sigmoid(1.702 * gate) * (up + 1))
    torch.testing.assert_close(layer(x), expected)


def test_biases_start_at_zero_and_do_not_shift_the_other_draws():
    plain, biased = FeedForward(small_config(), 0), FeedForward(small_config(ffn_bias=True), 0)
    initialize(plain, 1)
    initialize(biased, 1)
    assert not biased.up.bias.any() and not biased.down.bias.any()
    assert torch.equal(plain.up.weight, biased.up.weight)


def test_gradients_of_the_input_are_summed_from_up_to_gate():
    """As in all curves that are kept; sums of adapters' products depend on the order."""
    layer, order = FeedForward(small_config(), 0), []
    for name in ("gate", "up"):
        module = layer.get_submodule(name)
        module.register_forward_hook(lambda *_, name=name: order.append(name))
    layer(torch.randn(2, 5, 24))
    assert order == ["gate", "up"]


def test_casts_to_the_dtype_of_autocast():
    x = torch.randn(3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = cast_once(x)
        assert cast_once(y) is y
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert x.grad.dtype == torch.float32
