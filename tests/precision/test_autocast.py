import pytest
import torch

from setpoint.precision.mixed_precision import compute_in

CPU = torch.device("cpu")
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}


@pytest.mark.parametrize(
    ("compute", "stored"), [("fp32", "fp32"), ("bf16", "fp32"), ("bf16", "bf16")]
)
def test_products_are_in_the_format_and_weights_are_not(compute: str, stored: str) -> None:
    linear, x = torch.nn.Linear(4, 4, dtype=FORMATS[stored]), torch.randn(2, 4)
    with compute_in(compute, stored, CPU):
        assert linear(x.to(FORMATS[stored])).dtype == FORMATS[compute]
        assert torch.is_autocast_enabled("cpu") == (compute != stored)
    assert linear.weight.dtype == FORMATS[stored]


def test_fp32_is_what_the_weights_are_in() -> None:
    with compute_in("fp32", "bf16", CPU):
        assert not torch.is_autocast_enabled("cpu")
