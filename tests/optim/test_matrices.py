import pytest
import torch

from setpoint.optim.muon import matrices_of, rows_and_columns


@pytest.mark.parametrize(
    ("shape", "outputs", "inputs", "whole"),
    [
        ((4, 6), 4, 6, (1, 4, 6)),
        ((5, 4, 6), 6, 4, (5, 4, 6)),
        ((8, 3, 2, 2), 8, 12, (1, 8, 12)),
    ],
)
def test_what_the_dimensions_mean(
    shape: tuple[int, ...], outputs: int, inputs: int, whole: tuple[int, ...]
) -> None:
    parameter = torch.randn(shape)
    assert rows_and_columns(parameter) == (outputs, inputs)
    found = matrices_of(parameter[None])
    assert found.shape == whole
    assert torch.equal(found.reshape(shape), parameter)
