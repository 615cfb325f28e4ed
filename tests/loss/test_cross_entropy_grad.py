"""The closed gradient against autograd's of the plain loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from setpoint.loss.chunked import cross_entropy_grad

from .small import OPTIONS, batch, plain


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("weighted", [False, True])
def test_equal_to_autograd(options: dict[str, Any], weighted: bool) -> None:
    logits, targets, given = batch()
    loss = plain(**options)
    targets, weights = loss.weigh(targets.flatten(), given.flatten() if weighted else None)
    flat = logits.flatten(0, 1).requires_grad_()
    expected = loss.sums(flat, targets, weights)
    (wanted,) = torch.autograd.grad(expected.total, flat)
    before = flat.detach().clone()
    found = cross_entropy_grad(
        flat.detach(),
        targets,
        weights,
        z_loss=loss.z_loss,
        label_smoothing=loss.label_smoothing,
    )
    assert torch.equal(flat.detach(), before), "logits are left as they are"
    torch.testing.assert_close(found.total, expected.total.detach(), rtol=1e-14, atol=0)
    torch.testing.assert_close(found.nats, expected.nats, rtol=1e-14, atol=0)
    torch.testing.assert_close(found.grad * found.weights, wanted, rtol=1e-12, atol=1e-13)


def test_where_the_z_loss_turns_a_row_around() -> None:
    """1 + 2 z_loss log Z may be zero or negative, and nothing is divided by it."""
    logits = torch.full((2, 4), -8.0, dtype=torch.float64)
    logits[1] = -0.5 - torch.tensor(4.0).log()
    found = cross_entropy_grad(logits, torch.tensor([1, 2]), None, z_loss=1.0, label_smoothing=0.0)
    log_z = logits.logsumexp(-1)
    p = torch.full((2, 4), 0.25, dtype=torch.float64) * (1 + 2 * log_z).unsqueeze(-1)
    p[0, 1] -= 1
    p[1, 2] -= 1
    torch.testing.assert_close(found.grad, p)
