import pytest
import torch

from setpoint.config import RunError, SetpointError
from setpoint.infer.generation import Sampling, sample

from .small import generators

LOGITS = torch.tensor([[1.0, 3.0, 2.0, -1.0, 2.5]])


def frequencies(count: int = 20_000, **settings) -> torch.Tensor:
    torch.manual_seed(0)
    drawn = sample(LOGITS.expand(count, -1), Sampling(**settings))
    return torch.bincount(drawn, minlength=5) / count


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax(temperature):
    expected = torch.exp(LOGITS[0] / temperature)
    expected = expected / expected.sum()
    torch.testing.assert_close(frequencies(temperature=temperature), expected, rtol=0, atol=0.015)


@pytest.mark.parametrize("settings", [{"top_k": 2}, {"top_p": 0.7}, {"min_p": 0.6}])
def test_what_a_filter_keeps_is_drawn_in_proportion(settings):
    expected = torch.exp(LOGITS[0]) * torch.tensor([0, 1, 0, 0, 1])
    found = frequencies(**settings)
    torch.testing.assert_close(found, expected / expected.sum(), rtol=0, atol=0.015)
    assert found[[0, 2, 3]].sum() == 0


def test_filters_that_keep_all_change_nothing():
    for settings in ({"top_k": 5}, {"top_k": 500}, {"top_p": 1.0}):
        assert torch.equal(frequencies(**settings), frequencies())


def test_greedy_takes_the_maximum_whatever_the_generator():
    assert sample(LOGITS, Sampling(temperature=0)).item() == 1
    for settings in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}):
        assert sample(LOGITS, Sampling(**settings)).item() == 1


def test_seen_tokens_become_less_likely():
    seen = torch.tensor([[False, True, False, True, False]])
    # 3 / 2 = 1.5 is below 2.5, and -1 * 2 = -2 is the least of all.
    assert sample(LOGITS, Sampling(temperature=0, repetition_penalty=2.0), seen=seen).item() == 4
    assert sample(LOGITS, Sampling(temperature=0), seen=seen).item() == 1


def test_tiny_temperature_is_greedy_and_finite():
    assert sample(LOGITS.bfloat16(), Sampling(temperature=1e-30)).item() == 1


def test_a_row_does_not_depend_on_those_beside_it():
    logits = torch.randn(4, 100, generator=torch.Generator().manual_seed(0))
    together = sample(logits, Sampling(), generators=generators(1, 2, 3, 4)).tolist()
    for row, seed in enumerate((1, 2, 3, 4)):
        alone = sample(logits[row : row + 1], Sampling(), generators=generators(seed))
        assert alone.item() == together[row]


def test_a_seed_repeats():
    def draw(first: int) -> list[int]:
        own = generators(*range(first, first + 50))
        return sample(LOGITS.expand(50, -1), Sampling(), generators=own).tolist()

    assert draw(3) == draw(3) != draw(4)


def test_what_is_excluded_is_never_drawn():
    """Also where the sum of the probabilities is rounded to less than the number drawn."""

    class Highest:
        def __call__(self, *shape, **kwargs):
            return torch.tensor([1 - 2**-53], dtype=torch.float64)

    logits = torch.tensor([[0.0, 1.0, 0.5, -100.0, -100.0]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "rand", Highest())
        assert sample(logits, Sampling(top_k=3)).item() == 2


@pytest.mark.parametrize("temperature", [-0.1, float("inf"), float("nan")])
def test_bad_temperature(temperature):
    with pytest.raises(SetpointError, match=r"temperature = .*: it must be 0"):
        Sampling(temperature=temperature)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"top_k": 0}, "top_k = 0: it must be at least 1"),
        ({"top_p": 0.0}, "top_p = 0.0: it must be above 0 and at most 1"),
        ({"top_p": float("nan")}, "top_p = nan: it must be above 0"),
        ({"min_p": 1.5}, "min_p = 1.5: it must be above 0 and at most 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty = 0.0: it must be above 0"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(SetpointError, match=words):
        Sampling(**settings)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_not_a_number_is_refused(temperature):
    logits = torch.zeros(2, 5)
    logits[1, 3] = float("nan")
    with pytest.raises(RunError, match="logits that are not numbers"):
        sample(logits, Sampling(temperature=temperature))
