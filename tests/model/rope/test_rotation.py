import math

import pytest
import torch

from setpoint.model.rope.rotation import rotate, rotation

from .. import reference


@pytest.mark.parametrize("start", [0, 5, 1_000_003])
def test_against_plain_trigonometry(start):
    positions = torch.arange(start, start + 3)
    x = torch.randn(2, 3, 4, 6, dtype=torch.float64)
    turned = rotate(x, rotation(positions, 6, 500.0))
    for b in range(2):
        for s in range(3):
            for h in range(4):
                expected = reference.rotate(x[b, s, h], start + s, 500.0)
                torch.testing.assert_close(turned[b, s, h], expected, rtol=0, atol=1e-6)


def test_angles_are_exact_far_out():
    far = 2**24 - 3
    table = rotation(torch.tensor([far]), 64, 10_000.0)
    for plane in range(32):
        angle = reference.rope_angle(far, plane, 64, 10_000.0)
        assert table.cos[0, 0, plane].item() == pytest.approx(math.cos(angle), abs=1e-7)
        assert table.sin[0, 0, plane + 32].item() == pytest.approx(math.sin(angle), abs=1e-7)


def test_products_depend_on_the_distance_alone():
    q, k = torch.randn(1, 1, 1, 16, dtype=torch.float64), torch.randn(1, 1, 1, 16).double()

    def product(at: int, other: int) -> float:
        turned = [
            rotate(x, rotation(torch.tensor([p]), 16, 100.0)) for x, p in ((q, at), (k, other))
        ]
        return (turned[0] * turned[1]).sum().item()

    assert product(9, 4) == pytest.approx(product(2009, 2004), abs=1e-5)
    assert product(9, 4) != pytest.approx(product(9, 5), abs=1e-3)


def test_each_row_may_have_its_own_positions():
    positions = torch.tensor([[0, 1, 2], [7, 0, 1]])
    x = torch.randn(2, 3, 4, 8)
    together = rotate(x, rotation(positions, 8, 100.0))
    for row in range(2):
        alone = rotate(x[row : row + 1], rotation(positions[row], 8, 100.0))
        assert torch.equal(together[row : row + 1], alone)


def test_keeps_dtype_and_rotates_in_fp32():
    x = torch.randn(1, 5, 2, 8, dtype=torch.bfloat16)
    by = rotation(torch.arange(100, 105), 8, 100.0)
    turned = rotate(x, by)
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned, rotate(x.float(), by).bfloat16())
