import pytest
import torch

from setpoint.shapes.outcome import Projection, supports_head

from ..model.small import small_model


def test_logits_are_cut_then_scaled_then_capped():
    torch.manual_seed(0)
    weight, hidden = torch.randn(5, 3), torch.randn(2, 4, 3)
    logits = Projection(weight, 4, 0.5, 2.0).logits(hidden)
    expected = 2.0 * torch.tanh(hidden @ weight[:4].T * 0.5 / 2.0)
    torch.testing.assert_close(logits, expected)
    assert torch.equal(Projection(weight, 5).logits(hidden), hidden @ weight.T)


def test_another_weight_may_stand_in():
    hidden, other = torch.randn(2, 3), torch.randn(4, 3)
    projection = Projection(torch.randn(4, 3), 4, 2.0)
    torch.testing.assert_close(projection.logits(hidden, other), hidden @ other.T * 2.0)


@pytest.mark.parametrize("model", [torch.nn.Linear(2, 2), torch.nn.Tanh()])
def test_foreign_models_take_no_head(model):
    assert not supports_head(model)
    assert supports_head(small_model())
