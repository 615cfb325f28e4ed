from __future__ import annotations

import pytest
import torch

from setpoint.model.moe.experts import assign, capacity

# Four tokens, two choices each, three experts.
CHOICES = torch.tensor([[2, 0], [0, 1], [0, 2], [2, 0]])


def test_rows_are_sorted_by_expert_and_then_by_token() -> None:
    found, load = assign(CHOICES, 3)
    assert found.ends.tolist() == [4, 5, 8]
    assert (found.slots // 2).tolist() == [0, 1, 2, 3, 1, 0, 2, 3]
    assert CHOICES.flatten()[found.slots].tolist() == [0, 0, 0, 0, 1, 2, 2, 2]
    assert load.chosen.flatten().tolist() == load.taken.flatten().tolist() == [4, 1, 3]


def test_the_earliest_tokens_fit() -> None:
    found, load = assign(CHOICES, 3, capacity_factor=0.75)  # 4 * 2 / 3 * 0.75 = 2
    assert found.ends.tolist() == [2, 3, 5]
    assert (found.slots // 2).tolist() == [0, 1, 1, 0, 2]
    assert load.chosen.flatten().tolist() == [4, 1, 3]
    assert load.taken.flatten().tolist() == [2, 1, 2]


def test_a_capacity_that_suffices_changes_nothing() -> None:
    plain, limited = assign(CHOICES, 3), assign(CHOICES, 3, capacity_factor=1.5)
    for ours, theirs in zip(limited, plain, strict=True):
        assert all(map(torch.equal, ours[:2], theirs[:2]))


def test_padding_is_sorted_with_the_others_and_not_counted() -> None:
    found, load = assign(CHOICES, 3, valid=torch.tensor([False, True, True, True]))
    plain, _ = assign(CHOICES, 3)
    assert torch.equal(found.slots, plain.slots) and torch.equal(found.ends, plain.ends)
    assert load.chosen.flatten().tolist() == load.taken.flatten().tolist() == [3, 1, 2]


def test_padding_takes_no_capacity() -> None:
    valid = torch.tensor([False, True, True, True])
    found, load = assign(CHOICES, 3, capacity_factor=1.0, valid=valid)  # 3 * 2 / 3 = 2
    assert found.ends.tolist() == [2, 3, 5]
    assert (found.slots // 2).tolist() == [1, 2, 1, 2, 3]
    assert load.taken.flatten().tolist() == [2, 1, 2]


def test_random_choices_against_counting() -> None:
    generator = torch.Generator().manual_seed(0)
    experts = torch.stack([torch.randperm(9, generator=generator)[:3] for _ in range(50)])
    valid = torch.rand(50, generator=generator) < 0.8
    found, load = assign(experts, 9, capacity_factor=0.9, valid=valid)
    limit = -(-int(valid.sum()) * 3 * 9 // (9 * 10))
    expected, taken = [], []
    for expert in range(9):
        tokens = [t for t in range(50) if valid[t] and expert in experts[t]]
        taken.append(len(tokens[:limit]))
        expected += [t * 3 + experts[t].tolist().index(expert) for t in tokens[:limit]]
    assert found.slots.tolist() == expected
    assert load.taken.flatten().tolist() == taken
    assert max(load.chosen.flatten().tolist()) > limit


@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "factor", "expected"),
    [
        (10, 2, 4, 1.0, 5),
        (10, 2, 4, 1.01, 6),
        (10, 1, 1, 1.1, 11),  # as floats 10 * 1.1 is a little more than 11
        (1, 1, 64, 0.5, 1),  # at least one: what is left over is rounded up
        (0, 2, 4, 1.0, 0),
    ],
)
def test_capacity(tokens: int, top_k: int, experts: int, factor: float, expected: int) -> None:
    assert capacity(tokens, top_k, experts, factor) == expected
    on_device = capacity(torch.tensor(float(tokens)), top_k, experts, factor)
    assert isinstance(on_device, torch.Tensor) and on_device.item() == expected
