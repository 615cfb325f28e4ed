from __future__ import annotations

import torch

from setpoint.model.moe.experts import Assignments, gather, load_factors, spread, weighted_sums


def test_gather_and_its_gradient() -> None:
    x = torch.arange(6.0, dtype=torch.float64).view(3, 2).requires_grad_()
    slots = torch.tensor([3, 0, 5, 1])  # tokens 1, 0, 2, 0
    rows = gather(x, slots, 2)
    assert rows.tolist() == [[2, 3], [0, 1], [4, 5], [0, 1]]
    assert torch.autograd.gradcheck(lambda x: gather(x, slots, 2), (x,))


def test_spread_and_its_gradient() -> None:
    rows = torch.tensor([[1.0], [2.0]], dtype=torch.float64, requires_grad=True)
    slots = torch.tensor([3, 1])
    assert spread(rows, slots, 4).flatten().tolist() == [0, 2, 0, 1]
    assert spread(rows, torch.tensor([1, 0]), 2).flatten().tolist() == [2, 1]
    assert torch.autograd.gradcheck(lambda rows: spread(rows, slots, 4), (rows,))


def test_scaled_gradient() -> None:
    rows = torch.ones(6, 2, dtype=torch.float64, requires_grad=True)
    # The mean load is 2.
    factors = load_factors(6, torch.tensor([[1], [0], [5]]), torch.tensor([1, 1, 6]), rows.dtype)
    torch.testing.assert_close(factors, torch.tensor([2.0, *[0.4] * 5]).double())
    weights = torch.ones(6, 1, dtype=torch.float64)
    assigned = Assignments(torch.arange(6), torch.tensor([6]), factors)
    scaled = weighted_sums(rows, weights, assigned)
    assert torch.equal(scaled, rows)
    scaled.sum().backward()
    assert rows.grad is not None and torch.equal(rows.grad[:, 1], factors)
