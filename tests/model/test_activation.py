import math

import pytest
import torch

from setpoint.model.block_modules import activation


def gelu(x: float) -> float:
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: float) -> float:
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def swish(x: float, slope: float = 1.0) -> float:
    return x / (1 + math.exp(-slope * x))


FORMULAS = {
    "swiglu": swish,
    "swiglu_clamped": lambda x: swish(min(x, 7.0), 1.702),
    "geglu": gelu,
    "geglu_tanh": gelu_tanh,
    "reglu": lambda x: max(x, 0.0),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": lambda x: max(x, 0.0),
    "relu_squared": lambda x: max(x, 0.0) ** 2,
}


@pytest.mark.parametrize("name", FORMULAS)
def test_against_the_formula(name):
    x = torch.linspace(-9, 9, 41, dtype=torch.float64)
    expected = torch.tensor([FORMULAS[name](value) for value in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(activation(name)(x), expected, rtol=1e-12, atol=1e-12)
