"""What models and losses give: logits, perplexity, bits per byte."""

import math

import numpy as np
import pytest
import torch

from setpoint.shapes.outcome import Projection, supports_head
from setpoint.shapes.scoring import bits_per_byte, perplexity

from ..model.small import small_model


def test_logits_are_cut_then_scaled_then_capped() -> None:
    torch.manual_seed(0)
    weight, hidden = torch.randn(5, 3), torch.randn(2, 4, 3)
    logits = Projection(weight, 4, 0.5, 2.0).logits(hidden)
    expected = 2.0 * torch.tanh(hidden @ weight[:4].T * 0.5 / 2.0)
    torch.testing.assert_close(logits, expected)
    assert torch.equal(Projection(weight, 5).logits(hidden), hidden @ weight.T)
    other = torch.randn(4, 3)  # another weight may stand in
    projection = Projection(weight, 4, 2.0)
    torch.testing.assert_close(projection.logits(hidden, other), hidden @ other.T * 2.0)


def test_foreign_models_take_no_head() -> None:
    assert not supports_head(torch.nn.Linear(2, 2))
    assert supports_head(small_model())


def test_perplexity_against_numpy() -> None:
    for classes in (2, 257, 50_304):
        assert perplexity(math.log(classes)) == pytest.approx(classes, rel=1e-12)
    for loss in (0.0, 1e-9, 3.25, 20.5, 700.0):
        assert perplexity(loss) == pytest.approx(float(np.exp(loss)), rel=1e-14)
    assert perplexity(709.0) < math.inf
    assert perplexity(710.0) == perplexity(math.inf) == math.inf
    assert math.isnan(perplexity(math.nan))


def test_bits_per_byte() -> None:
    # A token of four bytes that has the probability 1 / 16 costs four bits, one for each byte.
    assert bits_per_byte(3 * math.log(16), 12) == pytest.approx(1.0, rel=1e-15)
    assert bits_per_byte(math.log(2), 8) == pytest.approx(0.125, rel=1e-15)
