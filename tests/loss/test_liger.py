"""How Liger is called; its kernels themselves need a GPU."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from setpoint.config import SetpointError, resolve
from setpoint.loss.config import LigerCrossEntropy
from setpoint.loss.fused import liger_missing

from ..support.snapshots import compare
from .liger_stand_in import liger_stand_in
from .small import batch, head, plain, projection


@pytest.mark.parametrize("soft_cap", [None, 3.0])
@pytest.mark.parametrize(
    "options", [{}, {"z_loss": 0.3}, {"ignore_index": 3}, {"z_loss": 0.3, "ignore_index": 3}]
)
def test_it_gives_what_the_plain_loss_gives(options: Any, soft_cap: float | None) -> None:
    _, targets, _ = batch()
    hidden, matrix = head(dtype=torch.float32)
    to_logits = projection(matrix, soft_cap, scale=0.7)
    expected = plain(**options)(to_logits.logits(hidden), targets)
    with liger_stand_in():
        found = (
            resolve(LigerCrossEntropy(**options)).build().from_hidden(hidden, to_logits, targets)
        )
    assert found.total.item() == pytest.approx(expected.total.item(), rel=1e-5)
    assert found.nats.item() == pytest.approx(expected.nats.item(), rel=1e-5)
    assert not found.nats.requires_grad
    theirs = torch.autograd.grad(expected.total, (hidden, matrix))
    torch.testing.assert_close(torch.autograd.grad(found.total, (hidden, matrix)), theirs)


@pytest.mark.cuda
@pytest.mark.skipif(liger_missing() is not None, reason=str(liger_missing()))
@pytest.mark.parametrize("z_loss", [0.0, 1e-3])
def test_on_a_gpu(z_loss: float) -> None:
    _, targets, _ = batch(rows=8, length=64)
    hidden, matrix = (
        t.detach().cuda().requires_grad_() for t in head(8, 64, dim=32, dtype=torch.float32)
    )
    expected = plain(z_loss=z_loss)(projection(matrix).logits(hidden), targets.cuda())
    loss = resolve(LigerCrossEntropy(z_loss=z_loss)).build()
    found = loss.from_hidden(hidden, projection(matrix), targets.cuda())
    assert found.nats.item() == pytest.approx(expected.nats.item(), rel=1e-4)
    theirs = torch.autograd.grad(expected.total, (hidden, matrix))
    ours = torch.autograd.grad(found.total, (hidden, matrix))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_without_the_package_without_a_gpu_and_with_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    for found in (None, object()):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, found=found: found)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(SetpointError) as caught:
            resolve(LigerCrossEntropy()).build()
        said.append(str(caught.value))
    monkeypatch.undo()
    _, targets, weights = batch()
    hidden, matrix = head()
    with liger_stand_in():
        loss = resolve(LigerCrossEntropy()).build()
        with pytest.raises(SetpointError) as caught:
            loss.from_hidden(hidden, projection(matrix), targets, weights)
    compare("loss/liger", "\n\n".join((*said, str(caught.value))))
