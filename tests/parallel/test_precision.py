import torch

from setpoint.parallel.precision import compute_in


def test_matrix_products_are_in_the_format_and_parameters_are_not():
    linear, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        with compute_in(name, torch.device("cpu")):
            assert linear(x).dtype == dtype
        assert linear.weight.dtype == torch.float32
