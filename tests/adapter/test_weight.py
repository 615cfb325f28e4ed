"""Quantized weights in modules: products, gradients, what is kept for them, noise, loading."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from setpoint.adapter.config import FP8, NF4, NVFP4, Int8, Noise, Quantization
from setpoint.adapter.formats import NF4_GAP
from setpoint.adapter.quantized_weight import StepNoise, quantize_module
from setpoint.config import resolve
from setpoint.model.build import materialize, skeleton
from setpoint.model.initialize import initialize
from setpoint.precision.mixed_precision import cast_parameters

from ..model.small import VOCAB, small_config, small_model
from ..support.snapshots import refused

CONFIGS: tuple[Quantization, ...] = (
    resolve(NF4(group_size=16)),
    resolve(Int8()),
    resolve(FP8(group_size=16)),
    resolve(NVFP4()),
)
NAMES = ("nf4", "int8", "fp8", "nvfp4")
SIZES = {"dim": 32, "heads": 4, "kv_heads": 2, "ffn_dim": 48}


def layer(config: Quantization, noise: StepNoise | None = None) -> tuple[Any, Tensor]:
    """A quantized layer, and what its weight was."""
    torch.manual_seed(0)
    module = nn.Linear(64, 32)
    before = module.weight.detach().clone()
    quantize_module(config, module, "layer", noise)
    return module, before


def quantized(model: Any, config: Quantization) -> Any:
    """All linear layers of a model but the output matrix."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and name != "output":
            quantize_module(config, module, name)
    return model


@pytest.mark.parametrize("config", CONFIGS, ids=NAMES)
def test_gradients_go_through_the_dequantized_product(config: Quantization) -> None:
    module, before = layer(config)
    x = torch.randn(3, 5, 64, requires_grad=True)
    found = module(x)
    gradient = torch.randn_like(found)
    found.backward(gradient)
    dense = module.weight.detach()
    torch.testing.assert_close(found, x @ dense.T + module.bias)
    torch.testing.assert_close(x.grad, gradient @ dense)
    assert (dense - before).norm() < 0.12 * before.norm()
    assert all(not part.requires_grad for part in module.quantized.parameters())
    assert module.bias.grad is not None
    with torch.autocast("cpu", torch.bfloat16):
        assert module(x).dtype == torch.bfloat16


def kept_bytes(compute: Callable[[], Tensor]) -> int:
    """The bytes of all tensors that autograd keeps."""
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        compute()
    return sum(storages.values())


def test_no_dense_weight_is_kept_for_the_backward_pass() -> None:
    config = resolve(NF4())
    module = nn.Linear(512, 512, bias=False)
    x = torch.randn(4, 512, requires_grad=True)
    dense = module.weight.nbytes
    assert kept_bytes(lambda: module(x)) >= dense
    quantize_module(config, module, "layer")
    held = sum(part.nbytes for part in module.parameters())
    assert held < dense / 7.5
    assert kept_bytes(lambda: module(x)) <= held


def test_noise_is_that_of_the_step_and_of_half_a_quantization_step() -> None:
    noise = StepNoise(resolve(Noise(alpha=0.5, final_alpha=0.05, decay_steps=10)), seed=3)
    module, _ = layer(resolve(NF4(group_size=64, double=False)), noise)
    weights = module.quantized
    dense = module.weight.detach()
    x = torch.randn(7, 64, requires_grad=True)

    def noisy() -> Tensor:
        return weights.dense_of(weights.parts(), weights.key(), torch.float32)

    first = noisy()
    steps = 0.5 * NF4_GAP * weights.scales
    drawn = (first - dense) / (0.5 * steps)
    assert abs(drawn.std().item() - 1) < 0.05 and abs(drawn.mean().item()) < 0.05
    # The forward pass, the backward pass and what is computed again have the same noise.
    for compute in (lambda: module(x), lambda: checkpoint(module, x, use_reentrant=False)):
        x.grad = None
        found: Any = compute()
        torch.testing.assert_close(found, x @ first.T + module.bias)
        found.sum().backward()
        torch.testing.assert_close(x.grad, torch.ones(7, 32) @ first)
    noise.step = 10
    later = noisy()
    spread = (later - dense).std() / (first - dense).std()
    assert spread.item() == pytest.approx(0.1, rel=0.05)
    noise.step = 0
    assert torch.equal(noisy(), first)
    noise.seed = 4
    assert not torch.equal(noisy(), first)
    module.eval()
    assert torch.equal(module(x), x @ dense.T + module.bias)


def test_what_is_not_finite_is_refused() -> None:
    module = nn.Linear(64, 32)
    with torch.no_grad():
        module.weight[3, 4] = torch.inf
    with refused():
        quantize_module(CONFIGS[0], module, "up")


def test_a_model_begins_quantized_with_the_values_of_a_dense_one() -> None:
    dense = small_model(**SIZES)
    model = quantized(skeleton(small_config(**SIZES), VOCAB), CONFIGS[0])
    materialize(model, "cpu", torch.float32)
    initialize(model, 1)
    expected = quantized(dense, CONFIGS[0]).state_dict()
    held = model.state_dict()
    assert held.keys() == expected.keys()
    assert all(torch.equal(held[name], each) for name, each in expected.items())
    # Scales keep their dtype, whatever parameters are stored in.
    cast_parameters(model, torch.bfloat16)
    dtypes = {name.rpartition(".")[2]: p.dtype for name, p in model.named_parameters()}
    assert dtypes["scale_scales"] == torch.float32 and dtypes["codes"] == torch.uint8
    assert dtypes["weight"] == torch.bfloat16
