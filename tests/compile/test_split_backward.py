"""Backward passes of compiled code in two parts: gradients of inputs, then those of weights."""

import torch
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.utils.flop_counter import FlopCounterMode

from setpoint.compile.split_backward import backward_pass, kept_for_two_passes, splitting

from ..parallel.test_pipeline import splits


@splits
def test_each_product_is_computed_once_and_gradients_are_those_of_one_pass() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 8))
    x, above = torch.randn(4, 8, requires_grad=True), torch.randn(4, 8)
    weights = list(model.parameters())
    expected = torch.autograd.grad(model(x), [x, *weights], above)
    with kept_for_two_passes():
        compiled = torch.compile(model, backend=splitting("aot_eager", None, None, None))
        for _ in range(2):  # the first pass compiles
            x.grad = None
            model.zero_grad()
            flops: list[int] = []
            out = compiled(x)
            with FlopCounterMode(display=False) as seen, backward_pass("input"):
                _, groups = stage_backward_input([out], [above], [x], iter(weights))
            flops.append(seen.get_total_flops())
            assert all(weight.grad is None for weight in weights)
            with FlopCounterMode(display=False) as seen, backward_pass("weight"):
                stage_backward_weight(iter(weights), groups)
            flops.append(seen.get_total_flops())
        found: list[Tensor | None] = [x.grad, *(weight.grad for weight in weights)]
    torch.testing.assert_close(found, list(expected))
    products = 2 * 2 * 4 * 8 * 16
    assert flops == [products, products]
