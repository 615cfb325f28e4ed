import math

import pytest
import torch

from setpoint.optim.adam import random_bits, round_stochastically


def rounded(value: torch.Tensor, seed: int = 0) -> torch.Tensor:
    noise = random_bits(value.numel(), torch.Generator().manual_seed(seed))
    return round_stochastically(value, noise.view(value.shape))


@pytest.mark.parametrize("value", [1.0 + 2**-9, 1.0 + 0.9 * 2**-7, -3.7, 1e-30, -1e-20, 2.5e37])
def test_the_mean_is_the_value(value: float) -> None:
    """Both neighbours occur, and their mean is the value, within five standard errors."""
    count = 200_000
    found = rounded(torch.full((count,), value)).double()
    exact = torch.tensor(value).double()
    low, high = found.min(), found.max()
    assert low < exact < high
    gap = high - low
    # The two are neighbours in bf16.
    assert gap <= 2**-7 * 2 ** math.floor(math.log2(abs(value)))
    share = (exact - low) / gap
    error = gap * (share * (1 - share) / count).sqrt()
    assert (found.mean() - exact).abs() < 5 * error
    # Rounding to the nearest would be off by more.
    assert (exact.bfloat16().double() - exact).abs() > 5 * error


def test_what_bf16_has_stays() -> None:
    numbers = [0.0, -0.0, 1.0, -2.5, 3e38, 1e-40, math.inf, -math.inf]
    values = torch.tensor(numbers).bfloat16().float()
    for seed in range(20):
        found = rounded(values, seed)
        assert torch.equal(found.float(), values)
        assert torch.equal(torch.signbit(found), torch.signbit(values))


def test_what_is_no_number_stays_none() -> None:
    infinite = torch.tensor([math.inf, -math.inf]).repeat(1000)
    assert rounded(infinite - infinite).isnan().all()
    assert rounded(infinite * 0 * -1).isnan().all()


def test_the_seed_decides() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    before = values.clone()
    assert torch.equal(rounded(values, 3), rounded(values, 3))
    assert not torch.equal(rounded(values, 3), rounded(values, 4))
    assert torch.equal(values, before)
    assert rounded(values.reshape(10, 100).T, 3).shape == (100, 10)
