"""Every generator is seeded, and no two ranks draw the same numbers."""

from __future__ import annotations

import random
from typing import Any

import numpy
import pytest
import torch

from setpoint.parallel.determinism import hashed, rank_seed, seed_everything, seed_step


@pytest.fixture(autouse=True)
def _generators_go_on_as_before() -> Any:
    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    numpy.random.set_state(states[1])
    torch.set_rng_state(states[2])


def drawn() -> tuple[float, float, float]:
    return random.random(), float(numpy.random.rand()), float(torch.rand(()))


def test_rank_0_is_seeded_with_the_seed_itself() -> None:
    """As one process always was: runs of before go on as they were."""
    seed_everything(2**40 + 5)
    found = drawn()
    random.seed(2**40 + 5)
    numpy.random.seed((2**40 + 5) % 2**32)
    torch.manual_seed(2**40 + 5)
    assert found == drawn()


def test_all_generators_repeat() -> None:
    seed_everything(3, rank=1)
    first = drawn()
    assert drawn() != first
    seed_everything(3, rank=1)
    assert drawn() == first


def test_a_step_depends_on_seed_rank_and_number_alone() -> None:
    found: set[tuple[float, ...]] = set()
    for place in ((3, 7, 0), (3, 8, 0), (4, 7, 0), (3, 7, 1)):
        seed_step(*place)
        first = drawn()
        drawn()
        seed_step(*place)
        assert drawn() == first
        found.add(first)
    assert len(found) == 4


def test_gpus_are_seeded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.manual_seed does that, also for GPUs that are not in use yet."""
    seen: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seen.append)
    seed_everything(3, rank=1)
    assert seen == [rank_seed(3, 1)]


def test_dropout_masks_differ_between_ranks() -> None:
    """Trap: with one seed everywhere, all ranks drop the same elements."""
    masks: list[torch.Tensor] = []
    for rank in range(4):
        seed_everything(1234, rank)
        masks.append(torch.nn.functional.dropout(torch.ones(256)))
    assert len({tuple(mask.tolist()) for mask in masks}) == 4


def test_seeds_never_coincide() -> None:
    """Neither within a job nor with that of the next seed, as seed + rank would."""
    seeds = [rank_seed(seed, rank) for seed in range(1000, 1010) for rank in range(64)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seeds_are_those_of_every_machine() -> None:
    assert rank_seed(1234, 0) == 1234
    assert rank_seed(1234, 1) == hashed("1234/rank 1") == 324726876744691268
