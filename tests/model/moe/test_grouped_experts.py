from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from setpoint.model.modules import relu_squared
from setpoint.model.moe.experts import (
    Assignments,
    ExpertKernels,
    grouped_experts,
    looped_gradient,
    looped_product,
)

# Four tokens, two choices each, three experts; the choice at 5 was dropped.
SLOTS, ENDS = torch.tensor([1, 2, 4, 3, 0, 6, 7]), torch.tensor([3, 4, 7])
FUNCTIONS = {"silu": F.silu, "relu_squared": relu_squared}


def tensors(gated: bool) -> list[torch.Tensor | None]:
    sizes = ((4, 3), (4, 2), (3, 3, 5), (3, 3, 5), (3, 5, 3))
    generator = torch.Generator().manual_seed(0)
    made: list[torch.Tensor | None] = [
        torch.randn(size, dtype=torch.float64, generator=generator).requires_grad_()
        for size in sizes
    ]
    return made if gated else [*made[:2], None, *made[3:]]


def composed(x, weights, gate, up, down, factors, activation):
    """The same by single operations, row by row."""
    y = [torch.zeros(3, dtype=torch.float64) for _ in range(4)]
    for row, slot in enumerate(SLOTS.tolist()):
        expert, token = int((row >= ENDS).sum()), x[slot // 2]
        inner = activation(token @ (up if gate is None else gate)[expert])
        inner = inner if gate is None else inner * (token @ up[expert])
        out = inner @ down[expert]
        if factors is not None:
            out = out.detach() + (out - out.detach()) * factors[row]
        y[slot // 2] = y[slot // 2] + weights.flatten()[slot] * out
    return torch.stack(y)


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("scaled", [True, False])
def test_values_and_gradients(gated: bool, name: str, scaled: bool) -> None:
    inputs, activation = tensors(gated), FUNCTIONS[name]
    factors = torch.linspace(0.5, 2, 7, dtype=torch.float64) if scaled else None
    kernels = ExpertKernels(looped_product, looped_gradient, activation, 2)
    found = grouped_experts(*inputs, Assignments(SLOTS, ENDS, factors), kernels)
    expected = composed(*inputs, factors, activation)
    torch.testing.assert_close(found, expected)
    given, upstream = [t for t in inputs if t is not None], torch.randn_like(expected)
    ours = torch.autograd.grad(found, given, upstream)
    theirs = torch.autograd.grad(expected, given, upstream)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_what_it_keeps() -> None:
    """The inputs, the two products, and a weight for each row."""
    kept: list[int] = []
    inputs = tensors(gated=True)
    kernels = ExpertKernels(looped_product, looped_gradient, F.silu, 2)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor.numel()) or tensor, lambda tensor: tensor
    ):
        grouped_experts(*inputs, Assignments(SLOTS, ENDS), kernels)
    x, _, *matrices = [t.numel() for t in inputs if t is not None]
    assert sum(kept) == x + sum(matrices) + 2 * 7 * 5 + 7 + len(SLOTS) + len(ENDS)
