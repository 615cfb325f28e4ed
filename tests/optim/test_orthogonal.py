import pytest
import torch
from torch.optim._muon import _zeropower_via_newtonschulz

from setpoint.optim.muon import A, B, C, orthogonalize

SHAPES = [(16, 16), (8, 24), (24, 8), (1, 5), (5, 1)]


@pytest.mark.parametrize("shape", SHAPES)
def test_against_torch(shape: tuple[int, int]) -> None:
    for seed in range(20):
        matrix = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        theirs = _zeropower_via_newtonschulz(matrix, (A, B, C), 5, 1e-7)
        assert torch.equal(orthogonalize(matrix[None], 5)[0], theirs)


@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_come_to_about_one(shape: tuple[int, int]) -> None:
    matrices = torch.randn(6, *shape, generator=torch.Generator().manual_seed(1))
    found = orthogonalize(matrices, 5)
    values = torch.linalg.svdvals(found.double())
    # Small ones of square matrices need more steps.
    assert values.max() < 1.25 and values[:, 0].min() > 0.65
    # What it turns into is the nearest orthogonal matrix, up to these values.
    left, _, right = torch.linalg.svd(matrices.double(), full_matrices=False)
    turned = left.mT @ found.double() @ right.mT
    off = turned - torch.diag_embed(turned.diagonal(dim1=-2, dim2=-1))
    assert off.abs().max() < 0.05


def test_a_batch_is_each_matrix_by_itself() -> None:
    matrices = torch.randn(7, 12, 20, generator=torch.Generator().manual_seed(1))
    matrices[3] *= 1e6
    alone = torch.cat([orthogonalize(each[None], 5) for each in matrices])
    torch.testing.assert_close(orthogonalize(matrices, 5), alone, rtol=0, atol=2**-7)


def test_zero_stays_zero_and_nothing_is_changed() -> None:
    matrices = torch.zeros(2, 3, 4, dtype=torch.bfloat16)
    matrices[1] = 5.0
    before = matrices.clone()
    found = orthogonalize(matrices, 5)
    assert torch.equal(matrices, before)
    assert found[0].eq(0).all() and found[1].ne(0).all()
    one = before[1:].clone()
    orthogonalize(one, 5)
    assert torch.equal(one, before[1:])


def test_more_steps_come_closer() -> None:
    matrix = torch.randn(1, 16, 32, generator=torch.Generator().manual_seed(1))
    far = [
        float((torch.linalg.svdvals(orthogonalize(matrix, n).double()) - 1).abs().max())
        for n in (1, 5)
    ]
    assert far[1] < far[0]
