"""Each filter of logits against that of transformers."""

from __future__ import annotations

import pytest
import torch

from setpoint.infer import generation

LOGITS = 3 * torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
IDS = torch.randint(0, 50, (6, 9), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("penalty", [0.7, 1.0, 1.3, 5.0])
def test_repetition(penalty: float) -> None:
    from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

    seen = torch.zeros(LOGITS.shape, dtype=torch.bool).scatter(1, IDS, True)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(IDS, LOGITS.clone())
    torch.testing.assert_close(generation.repetition(LOGITS, seen, penalty), expected)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_temperature(temperature: float) -> None:
    from transformers.generation.logits_process import TemperatureLogitsWarper

    expected = TemperatureLogitsWarper(temperature)(IDS, LOGITS.clone())
    found = generation.scaled(LOGITS, temperature)
    torch.testing.assert_close(found.softmax(-1), expected.softmax(-1))
    assert bool((found.amax(-1) == 0).all())


@pytest.mark.parametrize("k", [1, 3, 50, 500])
def test_top_k(k: int) -> None:
    from transformers.generation.logits_process import TopKLogitsWarper

    expected = TopKLogitsWarper(k)(IDS, LOGITS.clone())
    torch.testing.assert_close(generation.top_k(LOGITS, k), expected)


@pytest.mark.parametrize("p", [0.01, 0.5, 0.9, 0.999, 1.0])
def test_top_p(p: float) -> None:
    from transformers.generation.logits_process import TopPLogitsWarper

    expected = TopPLogitsWarper(p)(IDS, LOGITS.clone())
    torch.testing.assert_close(generation.top_p(LOGITS, p), expected)


@pytest.mark.parametrize("share", [0.001, 0.1, 0.9, 1.0])
def test_min_p(share: float) -> None:
    from transformers.generation.logits_process import MinPLogitsWarper

    expected = MinPLogitsWarper(share)(IDS, LOGITS.clone())
    torch.testing.assert_close(generation.min_p(LOGITS, share), expected)


def test_all_of_them_in_the_order_of_transformers() -> None:
    from transformers.generation import logits_process as theirs

    chain = theirs.LogitsProcessorList(
        [
            theirs.RepetitionPenaltyLogitsProcessor(1.2),
            theirs.TemperatureLogitsWarper(0.8),
            theirs.TopKLogitsWarper(30),
            theirs.TopPLogitsWarper(0.9),
            theirs.MinPLogitsWarper(0.02),
        ]
    )
    seen = torch.zeros(LOGITS.shape, dtype=torch.bool).scatter(1, IDS, True)
    found = generation.scaled(generation.repetition(LOGITS, seen, 1.2), 0.8)
    found = generation.min_p(generation.top_p(generation.top_k(found, 30), 0.9), 0.02)
    torch.testing.assert_close(found.softmax(-1), chain(IDS, LOGITS.clone()).softmax(-1))


def test_a_nucleus_is_never_empty() -> None:
    certain = torch.tensor([[0.0, 100.0, -100.0]])
    assert generation.top_p(certain, 1e-9).isfinite().sum() == 1
    even = torch.zeros(1, 4)
    assert generation.top_p(even, 0.5).isfinite().sum() == 2
