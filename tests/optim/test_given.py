import torch

from setpoint.optim.base import given_groups, given_tensors


def test_groups_are_copied_and_pairs_make_one() -> None:
    a, b = torch.zeros(1), torch.zeros(2)
    given = {"params": (pair for pair in [("a", a)]), "lr": 0.1}
    (group,) = given_groups(iter([given]))
    assert group == {"params": [("a", a)], "lr": 0.1} and group is not given
    (group,) = given_groups(iter([("a", a), ("b", b)]))
    assert group == {"params": [("a", a), ("b", b)]}
    assert given_groups([]) == []


def test_tensors_with_and_without_names() -> None:
    a, b = torch.zeros(1), torch.zeros(2)
    found = list(given_tensors([{"params": [("a", a)]}, {"params": [b]}]))
    assert found[0] is a and found[1] is b
