from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from setpoint.model.moe.losses import balance_loss, sequence_counts, z_loss


def spread(batch: int, length: int, experts: int) -> tuple[Tensor, Tensor]:
    """Uniform scores, and choices of two that come round all experts."""
    scores = torch.full((batch, length, experts), 1 / experts)
    first = torch.arange(batch * length).view(batch, length)
    return scores, torch.stack((2 * first % experts, (2 * first + 1) % experts), dim=-1)


def of_batch(scores: Tensor, chosen: Tensor, valid: Tensor | None = None) -> Tensor:
    counts = sequence_counts(chosen, scores.shape[-1], valid).sum(dim=0, keepdim=True)
    flat = None if valid is None else valid.flatten()[None]
    return balance_loss(scores.flatten(0, 1)[None], counts, flat)


def of_sequences(scores: Tensor, chosen: Tensor, valid: Tensor | None = None) -> Tensor:
    return balance_loss(scores, sequence_counts(chosen, scores.shape[-1], valid), valid)


@pytest.mark.parametrize("experts", [2, 8])
def test_uniform_routing_costs_one(experts: int) -> None:
    scores, chosen = spread(2, 8, experts)
    assert of_batch(scores, chosen).item() == pytest.approx(1)
    assert of_sequences(scores, chosen).item() == pytest.approx(1)


def test_all_tokens_on_one_expert_cost_as_many_as_there_are() -> None:
    scores = torch.zeros(2, 5, 4)
    scores[..., 3] = 1
    chosen = torch.full((2, 5, 1), 3)
    assert of_batch(scores, chosen).item() == 4
    assert of_sequences(scores, chosen).item() == 4


def test_the_loss_of_sequences_is_not_that_of_the_batch() -> None:
    """Each sequence on an expert of its own: even in the batch, as uneven as can be in each."""
    scores = torch.zeros(2, 5, 2)
    scores[0, :, 0] = scores[1, :, 1] = 1
    chosen = torch.tensor([0, 1]).view(2, 1, 1).expand(2, 5, 1)
    assert of_batch(scores, chosen).item() == 1
    assert of_sequences(scores, chosen).item() == 2


def test_counts_carry_no_gradient_and_scores_do() -> None:
    scores = torch.softmax(torch.randn(1, 6, 4), -1).requires_grad_()
    chosen = torch.tensor([[0], [0], [1], [0], [2], [0]])[None]
    of_batch(scores, chosen).backward()
    # d/dP_i of E sum f_i P_i is E f_i, shared among the tokens of the mean.
    expected = 4 * torch.tensor([4, 1, 1, 0]) / 6 / 6
    torch.testing.assert_close(scores.grad, expected.expand(1, 6, 4))


def test_z_loss_is_the_mean_square_of_the_log_of_the_partition_function() -> None:
    logits = torch.zeros(1, 2, 4)
    logits[0, 1] = 3.0
    expected = (math.log(4) ** 2 + (3 + math.log(4)) ** 2) / 2
    assert z_loss(logits, None).item() == pytest.approx(expected)


def test_padding_takes_no_part() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 6, 4, generator=generator)
    scores, chosen = torch.softmax(logits, -1), logits.topk(2).indices
    valid = torch.ones(2, 6, dtype=torch.bool)
    valid[:, 4:] = False
    for ours, theirs in (
        (of_batch(scores, chosen, valid), of_batch(scores[:, :4], chosen[:, :4])),
        (of_sequences(scores, chosen, valid), of_sequences(scores[:, :4], chosen[:, :4])),
        (z_loss(logits, valid), z_loss(logits[:, :4], None)),
    ):
        torch.testing.assert_close(ours, theirs)
