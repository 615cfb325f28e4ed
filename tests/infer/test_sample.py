import pytest
import torch

from setpoint.config import SetpointError
from setpoint.infer.sample import sample

LOGITS = torch.tensor([[1.0, 3.0, 2.0, -1.0, 2.5]])


def frequencies(count: int = 20_000, **settings) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    drawn = sample(LOGITS.expand(count, -1), generator=generator, **settings)
    return torch.bincount(drawn, minlength=5) / count


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax(temperature):
    expected = torch.exp(LOGITS[0] / temperature)
    expected = expected / expected.sum()
    torch.testing.assert_close(frequencies(temperature=temperature), expected, rtol=0, atol=0.015)


def test_top_k_keeps_the_likeliest_in_proportion():
    expected = torch.exp(LOGITS[0]) * torch.tensor([0, 1, 0, 0, 1])
    found = frequencies(top_k=2)
    torch.testing.assert_close(found, expected / expected.sum(), rtol=0, atol=0.015)
    assert found[[0, 2, 3]].sum() == 0


def test_top_k_of_all_or_more_changes_nothing():
    assert torch.equal(frequencies(top_k=5), frequencies())
    assert torch.equal(frequencies(top_k=500), frequencies())


def test_greedy_takes_the_maximum_whatever_the_generator():
    assert sample(LOGITS, temperature=0).item() == 1
    assert sample(LOGITS, top_k=1).item() == 1


def test_tiny_temperature_is_greedy_and_finite():
    assert sample(LOGITS.bfloat16(), temperature=1e-30).item() == 1


def test_a_seed_repeats():
    def draw() -> torch.Tensor:
        return sample(LOGITS.expand(50, -1), generator=torch.Generator().manual_seed(3))

    assert torch.equal(draw(), draw())


@pytest.mark.parametrize("temperature", [-0.1, float("inf"), float("nan")])
def test_bad_temperature(temperature):
    with pytest.raises(SetpointError, match=r"temperature = .*: it must be 0"):
        sample(LOGITS, temperature=temperature)


def test_bad_top_k():
    with pytest.raises(SetpointError, match="top_k = 0: it must be at least 1"):
        sample(LOGITS, top_k=0)
