from __future__ import annotations

import pytest
import torch

from setpoint.model.moe.experts import looped_gradient, looped_product

ENDS = torch.tensor([2, 2, 5, 7])


def test_each_group_by_its_own_matrix() -> None:
    rows, matrices = torch.randn(7, 3), torch.randn(4, 3, 5)
    expected = [rows[:2] @ matrices[0], rows[2:5] @ matrices[2], rows[5:] @ matrices[3]]
    torch.testing.assert_close(looped_product(rows, matrices, ENDS), torch.cat(expected))


def test_gradients() -> None:
    rows = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    matrices = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: looped_product(a, b, ENDS), (rows, matrices))


@pytest.mark.filterwarnings("ignore:.*is not registered.*")
def test_what_compilers_are_told_is_true() -> None:
    rows, matrices = torch.randn(7, 3, requires_grad=True), torch.randn(4, 3, 5, requires_grad=True)
    torch.library.opcheck(looped_product, (rows, matrices, ENDS))
    torch.library.opcheck(looped_gradient, (rows.detach(), torch.randn(7, 5), ENDS))


def test_on_the_meta_device() -> None:
    rows, matrices = torch.empty(7, 3, device="meta"), torch.empty(4, 3, 5, device="meta")
    assert looped_product(rows, matrices, ENDS.to("meta")).shape == (7, 5)
