import torch

from setpoint.loss.cross_entropy import Weigher
from setpoint.shapes.batch import IGNORE_INDEX

TARGETS = torch.tensor([[0, 1, 2, 3], [IGNORE_INDEX, 1, 900, 5]])


def test_without_anything_to_weigh_nothing_is_copied() -> None:
    weigh = Weigher()
    assert weigh.is_trivial
    targets, weights = weigh(TARGETS)
    assert targets is TARGETS
    assert weights is None


def test_an_ignored_token_is_ignored() -> None:
    weigh = Weigher(ignore_index=1)
    assert not weigh.is_trivial
    targets, weights = weigh(TARGETS)
    assert targets.tolist() == [[0, -100, 2, 3], [-100, -100, 900, 5]]
    assert weights is None


def test_tokens_weigh_what_is_said_and_others_one() -> None:
    targets, weights = Weigher(token_weights={"1": 0.5, "5": 4})(TARGETS)
    assert targets.tolist() == TARGETS.tolist()
    assert weights is not None
    assert weights.tolist() == [[1, 0.5, 1, 1], [0, 0.5, 1, 4]]


def test_weights_of_the_data_and_of_tokens_multiply() -> None:
    given = torch.tensor([[1.0, 2.0, 3.0, 0.0], [7.0, 4.0, 0.5, 2.0]])
    targets, weights = Weigher(ignore_index=2, token_weights={"1": 0.5, "5": 0})(TARGETS, given)
    assert weights is not None
    # What weighs nothing, or is ignored, does not count; each way says so in both results.
    assert weights.tolist() == [[1, 1, 0, 0], [0, 2, 0.5, 0]]
    assert targets.tolist() == [[0, 1, -100, -100], [-100, 1, 900, -100]]


def test_weights_of_the_data_alone() -> None:
    given = torch.ones(2, 4)
    given[0, 0] = 0
    weigh = Weigher()
    targets, weights = weigh(TARGETS, given)
    assert weights is not None
    assert weights.tolist() == [[0, 1, 1, 1], [0, 1, 1, 1]]
    assert targets[0, 0] == IGNORE_INDEX
