from typing import Any

import pytest
import torch
from torch.nn import functional as F

from setpoint.loss.chunked import cross_entropy_grad
from setpoint.loss.cross_entropy import Weigher
from setpoint.shapes.batch import IGNORE_INDEX

from .small import OPTIONS, VOCAB, batch, by_hand, plain

each_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())


@each_option
@pytest.mark.parametrize("weighted", [False, True])
def test_values_and_gradients_against_the_definition(
    options: dict[str, Any], weighted: bool
) -> None:
    logits, targets, given = batch()
    weights = given if weighted else None
    precise, ours = logits.clone().requires_grad_(), logits.float().requires_grad_()
    total, nats, _ = by_hand(precise, targets, weights, **options)
    found = plain(**options)(ours, targets, weights)
    assert found.total.dtype == found.nats.dtype == torch.float32
    assert not found.nats.requires_grad
    assert found.total.item() == pytest.approx(total.item(), rel=1e-5)
    assert found.nats.item() == pytest.approx(nats.item(), rel=1e-5)
    found.total.backward()
    total.backward()
    torch.testing.assert_close(ours.grad.double(), precise.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equal_to_torch(smoothing: float) -> None:
    """Torch's mean over valid targets is our sum over their number."""
    logits, targets, _ = batch()
    targets[0, 1] = 3
    found = plain(label_smoothing=smoothing, ignore_index=3)(logits, targets)
    targets = targets.masked_fill(targets == 3, IGNORE_INDEX)
    flat, wanted = logits.flatten(0, 1), targets.flatten()
    mean = F.cross_entropy(flat, wanted, label_smoothing=smoothing, ignore_index=IGNORE_INDEX)
    valid = int((wanted != IGNORE_INDEX).sum())
    torch.testing.assert_close(found.total / valid, mean)
    torch.testing.assert_close(found.nats / valid, F.cross_entropy(flat, wanted))


def test_token_weights_are_torchs_class_weights() -> None:
    logits, targets, _ = batch()
    table = torch.ones(VOCAB, dtype=torch.float64)
    table[1], table[5], table[7] = 0.5, 0.0, 2.5
    loss = plain(token_weights={"1": 0.5, "5": 0, "7": 2.5})
    found = loss(logits, targets)
    flat, wanted = logits.flatten(0, 1), targets.flatten()
    torch.testing.assert_close(found.total, F.cross_entropy(flat, wanted, table, reduction="sum"))
    # torch divides its mean by the sum of the weights as well.
    _, weights = loss.weigh(targets)
    assert weights is not None
    mean = F.cross_entropy(flat, wanted, table)
    torch.testing.assert_close(found.total / weights.sum(dtype=torch.float64), mean)


@each_option
def test_micro_batches_sum_to_the_whole(options: dict[str, Any]) -> None:
    logits, targets, weights = batch(rows=4)
    loss = plain(**options)
    whole = loss(logits, targets, weights)
    parts = [loss(logits[a:b], targets[a:b], weights[a:b]) for a, b in ((0, 1), (1, 4))]
    assert sum(part.total for part in parts).item() == pytest.approx(whole.total.item())
    assert sum(part.nats for part in parts).item() == pytest.approx(whole.nats.item())


@each_option
def test_nothing_valid_is_zero_with_zero_gradient(options: dict[str, Any]) -> None:
    logits, targets, _ = batch(ignored=2.0)
    logits.requires_grad_()
    found = plain(**options)(logits, targets)
    assert (found.total.item(), found.nats.item()) == (0.0, 0.0)
    found.total.backward()
    assert torch.equal(logits.grad, torch.zeros_like(logits))


@each_option
@pytest.mark.parametrize("value", [1e30, torch.inf])
def test_what_does_not_count_may_be_infinite(options: dict[str, Any], value: float) -> None:
    """The z-loss, too, is over valid positions only."""
    logits, targets, weights = batch()
    loss = plain(**options)
    expected = loss(logits, targets, weights)
    logits[targets == IGNORE_INDEX] = value
    found = loss(logits, targets, weights)
    assert found.total.item() == expected.total.item()
    assert found.nats.item() == expected.nats.item()


@each_option
def test_bf16_logits_are_summed_in_fp32(options: dict[str, Any]) -> None:
    logits, targets, _ = batch(rows=8, length=64)
    rounded = logits.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = plain(**options)(rounded, targets)
    total, nats, _ = by_hand(rounded, targets, **options)
    assert found.total.item() == pytest.approx(total.item(), rel=1e-5)
    assert found.nats.item() == pytest.approx(nats.item(), rel=1e-5)


@pytest.mark.parametrize("name", ["z_loss", "label_smoothing"])
def test_terms_change_the_total_and_not_the_nats(name: str) -> None:
    logits, targets, _ = batch()
    before, after = plain()(logits, targets), plain(**OPTIONS[name])(logits, targets)
    assert after.total > before.total
    assert after.nats.item() == pytest.approx(before.nats.item())


@each_option
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
        flat.detach(), targets, weights, z_loss=loss.z_loss, label_smoothing=loss.label_smoothing
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


TARGETS = torch.tensor([[0, 1, 2, 3], [IGNORE_INDEX, 1, 900, 5]])


def test_without_anything_to_weigh_nothing_is_copied() -> None:
    weigh = Weigher()
    assert weigh.is_trivial
    targets, weights = weigh(TARGETS)
    assert targets is TARGETS
    assert weights is None
