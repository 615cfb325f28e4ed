from __future__ import annotations

import torch

from setpoint.model.moe.layer import choose

SCORES = torch.tensor([[0.1, 0.9, 0.7, 0.6, 0.8, 0.0]])


def test_without_groups_the_highest() -> None:
    assert choose(SCORES, 3, 1, 1, rank_by=2).tolist() == [[1, 4, 2]]


def test_groups_by_their_best_expert() -> None:
    # Best of the three pairs: 0.9, 0.7, 0.8.
    assert choose(SCORES, 3, 3, 2, rank_by=1).tolist() == [[1, 4, 0]]
    assert choose(SCORES, 1, 3, 1, rank_by=1).tolist() == [[1]]


def test_groups_by_the_sum_of_their_best_two() -> None:
    # Sums of the three pairs: 1.0, 1.3, 0.8.
    assert choose(SCORES, 3, 3, 2, rank_by=2).tolist() == [[1, 2, 3]]
    assert choose(SCORES, 2, 3, 1, rank_by=2).tolist() == [[2, 3]]


def test_groups_of_one_expert() -> None:
    assert choose(SCORES, 2, 6, 2, rank_by=2).tolist() == [[1, 4]]


def test_scores_below_zero_do_not_let_other_groups_in() -> None:
    """A biased score may be negative: what is left out must not count as zero."""
    scores = torch.tensor([[-0.1, -0.5, -0.4, -0.6]])
    assert choose(scores, 2, 2, 1, rank_by=2).tolist() == [[0, 1]]


def test_no_gradient() -> None:
    scores = SCORES.clone().requires_grad_()
    assert not choose(scores, 2, 3, 2, rank_by=1).requires_grad
