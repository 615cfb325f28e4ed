"""PyTorch's own loss from hidden states against ours."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from setpoint.config import SetpointError, resolve
from setpoint.loss.config import LinearCrossEntropy
from setpoint.loss.linear import LinearCrossEntropyLoss, linear_missing

from ..support.snapshots import compare
from .small import batch, head, plain, projection

needs_torch = pytest.mark.skipif(linear_missing() is not None, reason=str(linear_missing()))


def linear(**options: Any) -> LinearCrossEntropyLoss:
    return resolve(LinearCrossEntropy(**options)).build()


@needs_torch
@pytest.mark.parametrize(
    "options", [{}, {"ignore_index": 3}, {"token_weights": {"1": 0.5, "5": 0, "7": 2.5}}]
)
@pytest.mark.parametrize(("chunk_size", "weighted"), [(None, False), (4, True)])
def test_equal_to_the_plain_loss(
    options: dict[str, Any], chunk_size: int | None, weighted: bool
) -> None:
    _, targets, given = batch()
    weights = given if weighted else None
    hidden, matrix = head()
    to_logits = projection(matrix, scale=0.7)
    expected = plain(**options)(to_logits.logits(hidden), targets, weights)
    loss = linear(chunk_size=chunk_size, **options)
    found = loss.from_hidden(hidden, to_logits, targets, weights)
    torch.testing.assert_close(found.total, expected.total)
    torch.testing.assert_close(found.nats, expected.nats)
    assert not found.nats.requires_grad
    theirs = torch.autograd.grad(expected.total * 1024, (hidden, matrix))
    torch.testing.assert_close(torch.autograd.grad(found.total * 1024, (hidden, matrix)), theirs)


@needs_torch
def test_sums_in_bf16_add_up() -> None:
    """Torch's own sum is several percent off here, since it comes in bf16."""
    _, targets, _ = batch(rows=16, length=256)
    hidden, matrix = head(rows=16, length=256, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        expected = plain()(projection(matrix).logits(hidden), targets)
        found = linear().from_hidden(hidden, projection(matrix), targets)
    assert found.total.dtype == found.nats.dtype == torch.float32
    assert found.total.item() == pytest.approx(expected.total.item(), rel=1e-3)
    theirs = torch.autograd.grad(expected.total, (hidden, matrix))
    for ours, other in zip(torch.autograd.grad(found.total, (hidden, matrix)), theirs, strict=True):
        torch.testing.assert_close(ours, other, rtol=5e-2, atol=5e-2 * other.abs().max().item())


@needs_torch
def test_nothing_valid_is_zero() -> None:
    _, targets, _ = batch(ignored=2.0)
    hidden, matrix = head()
    found = linear().from_hidden(hidden, projection(matrix), targets)
    assert (found.total.item(), found.nats.item()) == (0.0, 0.0)
    assert not any(g.any() for g in torch.autograd.grad(found.total, (hidden, matrix)))


def test_soft_caps_and_an_older_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    if linear_missing() is None:
        _, targets, _ = batch()
        hidden, matrix = head()
        with pytest.raises(SetpointError) as caught:
            linear().from_hidden(hidden, projection(matrix, 30.0), targets)
        said.append(str(caught.value))
        assert "cannot cap logits, and the model caps them at 30" in said[0]
    monkeypatch.delattr(F, "linear_cross_entropy", raising=False)
    monkeypatch.setattr(torch, "__version__", "2.11.0")
    with pytest.raises(SetpointError) as caught:
        linear()
    compare("loss/linear", str(caught.value))
