import pytest
import torch
from torch.nn import functional as F

from setpoint.config import resolve
from setpoint.loss.config import IGNORE_INDEX, CrossEntropy
from setpoint.loss.cross_entropy import CrossEntropyLoss


def made(z_loss: float = 0.0) -> CrossEntropyLoss:
    return resolve(CrossEntropy(z_loss=z_loss)).build()


def batch(rows: int = 3, length: int = 5, vocab: int = 11, ignored: float = 0.3):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, length, vocab, generator=generator) * 4
    targets = torch.randint(vocab, (rows, length), generator=generator)
    targets[torch.rand(rows, length, generator=generator) < ignored] = IGNORE_INDEX
    return logits, targets


def exact(logits, targets, z_loss):
    """Sums over valid tokens in float64, from torch's own loss and a direct formula."""
    valid = targets != -100
    flat, wanted = logits.double()[valid], targets[valid]
    nats = F.cross_entropy(flat, wanted, reduction="sum")
    z = torch.log(torch.exp(flat).sum(-1)) ** 2
    return nats + z_loss * z.sum(), nats


@pytest.mark.parametrize("z_loss", [0.0, 1e-4, 0.5])
@pytest.mark.parametrize("ignored", [0.0, 0.3])
def test_values_and_gradients_against_float64(z_loss, ignored):
    logits, targets = batch(ignored=ignored)
    logits.requires_grad_()
    found = made(z_loss)(logits, targets)
    precise = logits.detach().double().requires_grad_()
    total, nats = exact(precise, targets, z_loss)
    assert found.total.dtype == found.nats.dtype == torch.float32
    assert not found.nats.requires_grad
    assert found.total.item() == pytest.approx(total.item(), rel=1e-6)
    assert found.nats.item() == pytest.approx(nats.item(), rel=1e-6)
    found.total.backward()
    total.backward()
    torch.testing.assert_close(logits.grad.double(), precise.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("z_loss", [0.0, 0.5])
def test_gradient_against_finite_differences(z_loss):
    logits, targets = batch(rows=2, length=3, vocab=5)
    precise = logits.double().requires_grad_()
    loss = made(z_loss)
    assert torch.autograd.gradcheck(lambda x: loss(x, targets).total, (precise,))


@pytest.mark.parametrize("z_loss", [0.0, 0.5])
def test_micro_batches_sum_to_the_whole(z_loss):
    logits, targets = batch(rows=4)
    loss = made(z_loss)
    whole = loss(logits, targets)
    parts = [loss(logits[a:b], targets[a:b]) for a, b in ((0, 1), (1, 4))]
    assert sum(part.total for part in parts).item() == pytest.approx(whole.total.item(), rel=1e-6)
    assert sum(part.nats for part in parts).item() == pytest.approx(whole.nats.item(), rel=1e-6)


@pytest.mark.parametrize("z_loss", [0.0, 0.5])
def test_nothing_valid_is_zero_with_zero_gradient(z_loss):
    logits, targets = batch(ignored=2.0)
    logits.requires_grad_()
    found = made(z_loss)(logits, targets)
    assert (found.total.item(), found.nats.item()) == (0.0, 0.0)
    found.total.backward()
    assert torch.equal(logits.grad, torch.zeros_like(logits))


@pytest.mark.parametrize("z_loss", [0.0, 0.5])
def test_bf16_logits_are_summed_in_fp32(z_loss):
    logits, targets = batch(rows=8, length=64)
    rounded = logits.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = made(z_loss)(rounded, targets)
    total, nats = exact(rounded, targets, z_loss)
    assert found.total.item() == pytest.approx(total.item(), rel=1e-5)
    assert found.nats.item() == pytest.approx(nats.item(), rel=1e-5)


def test_z_loss_changes_the_total_and_not_the_nats():
    logits, targets = batch()
    plain, with_z = made()(logits, targets), made(0.1)(logits, targets)
    assert with_z.total > plain.total
    assert with_z.nats.item() == pytest.approx(plain.nats.item(), rel=1e-6)


def test_negative_weight_is_refused():
    with pytest.raises(Exception, match="z_loss"):
        resolve(CrossEntropy(z_loss=-1.0))
