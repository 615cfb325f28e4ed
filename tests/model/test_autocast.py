import torch

from setpoint.model.block_modules import cast_once


def test_does_nothing_outside_autocast():
    x = torch.randn(3)
    assert cast_once(x) is x


def test_casts_to_the_dtype_of_autocast():
    x = torch.randn(3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = cast_once(x)
        assert cast_once(y) is y
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert x.grad.dtype == torch.float32
