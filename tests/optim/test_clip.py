import math

import pytest
import torch
from torch import nn

from setpoint.optim.clip import clip_gradients, global_norm


def with_gradients(*values: list[float]) -> list[nn.Parameter]:
    parameters = []
    for value in values:
        parameter = nn.Parameter(torch.zeros(len(value)))
        parameter.grad = torch.tensor(value)
        parameters.append(parameter)
    return parameters


@pytest.mark.parametrize("limit", [0.7, "norm", 20.0])
def test_is_torchs_own_clipping(limit: float | str):
    """Also of what is at the limit, where it divides by a little more than the norm."""
    torch.manual_seed(0)
    values = [torch.randn(n).tolist() for n in (3, 50, 1)]
    ours, theirs = with_gradients(*values), with_gradients(*values)
    if isinstance(limit, str):
        limit = global_norm(p.grad for p in ours).item()
    assert torch.equal(clip_gradients(ours, limit), nn.utils.clip_grad_norm_(theirs, limit))
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.grad, b.grad)


def test_takes_a_generator_and_skips_what_has_no_gradient():
    parameters = [*with_gradients([3.0, 4.0]), nn.Parameter(torch.zeros(2))]
    assert clip_gradients((p for p in parameters), 1.0).item() == pytest.approx(5.0)
    assert parameters[0].grad.norm().item() == pytest.approx(1.0, rel=1e-5)
    assert parameters[1].grad is None


def test_a_norm_that_is_not_finite_is_shown():
    parameters = with_gradients([1.0, math.nan])
    assert math.isnan(clip_gradients(parameters, 1.0).item())


def test_by_value_is_torchs_own():
    torch.manual_seed(1)
    values = [torch.randn(n).tolist() for n in (3, 50, 1)]
    ours, theirs = with_gradients(*values), with_gradients(*values)
    norm = clip_gradients(ours, None, 0.4)
    whole = torch.tensor([number for value in values for number in value])
    assert norm.item() == pytest.approx(whole.norm().item())
    nn.utils.clip_grad_value_(theirs, 0.4)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.grad, b.grad)
    assert max(p.grad.abs().max().item() for p in ours) == pytest.approx(0.4)


def test_the_norm_of_bf16_gradients_is_exact():
    torch.manual_seed(2)
    parameter = nn.Parameter(torch.zeros(4099, dtype=torch.bfloat16))
    parameter.grad = torch.randn(4099).bfloat16()
    exact = parameter.grad.double().norm().item()
    norm = clip_gradients([parameter], 1.0)
    assert norm.dtype == torch.float32
    assert norm.item() == pytest.approx(exact, rel=1e-6)
