"""Losses of logits of which each rank has a part of the vocabulary, against those of all."""

import numpy as np
import pytest
import torch

from setpoint.loss.cross_entropy import count_correct, count_correct_from_hidden
from setpoint.shapes.batch import IGNORE_INDEX
from setpoint.shapes.outcome import Projection

from ..support.forks import forked


def test_losses_and_gradients_of_a_divided_vocabulary():
    forked("tests.loss.vocabulary_ranks")


BATCH, LENGTH, DIM, CLASSES = 3, 17, 8, 5


def problem(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, an output matrix, and targets, of which a fifth do not count."""
    made = torch.Generator().manual_seed(1)
    hidden = torch.randn(BATCH, LENGTH, DIM, generator=made, dtype=torch.float64)
    weight = torch.randn(CLASSES + 3, DIM, generator=made, dtype=torch.float64)
    targets = torch.randint(CLASSES, (BATCH, LENGTH), generator=made)
    targets[torch.rand(BATCH, LENGTH, generator=made) < 0.2] = IGNORE_INDEX
    return hidden.to(dtype), weight.to(dtype), targets


def counted(logits: np.ndarray, targets: torch.Tensor) -> int:
    rows, wanted = logits.reshape(-1, CLASSES), targets.flatten().tolist()
    return sum(int(np.argmax(row)) == t for row, t in zip(rows, wanted, strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("chunk", [1, 7, 1024])
def test_from_hidden_states_as_from_logits(dtype: torch.dtype, chunk: int) -> None:
    hidden, weight, targets = problem(dtype)
    projection = Projection(weight, CLASSES, scale=0.5, soft_cap=3.0)
    logits = (hidden @ weight[:CLASSES].T).double().numpy()
    expected = counted(logits, targets)  # neither scale nor cap changes which one is highest
    assert 0 < expected < (targets != IGNORE_INDEX).sum()
    assert int(count_correct_from_hidden(hidden, projection, targets, chunk)) == expected
    assert int(count_correct(projection.logits(hidden), targets)) == expected


def test_not_all_logits_are_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, targets = problem(torch.float32)
    seen: list[tuple[int, torch.dtype]] = []

    def finish(self: Projection, logits: torch.Tensor, real=Projection.finish) -> torch.Tensor:
        seen.append((len(logits), logits.dtype))
        return real(self, logits)

    monkeypatch.setattr(Projection, "finish", finish)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        count_correct_from_hidden(hidden, Projection(weight, CLASSES), targets, chunk=20)
    assert seen == [(20, torch.bfloat16), (20, torch.bfloat16), (11, torch.bfloat16)]


def test_of_equal_logits_the_first_counts() -> None:
    logits = torch.zeros(1, 3, CLASSES)
    assert int(count_correct(logits, torch.tensor([[0, 1, IGNORE_INDEX]]))) == 1
