import pytest
import torch
from torch.nn.attention import varlen

from setpoint.model.attention.packed import Varlen

from . import kernels
from .layouts import LAYOUTS


def test_the_function_is_that_of_pytorch():
    assert Varlen().function is varlen.varlen_attn


@pytest.mark.parametrize("kv_heads", [1, 4])
def test_groups_are_asked_for_where_there_is_a_question(kv_heads):
    options = []

    def new(*tensors, scale=None, window_size=(-1, -1), enable_gqa=False):
        options.append(enable_gqa)
        return tensors[0]

    def old(*tensors, scale=None, window_size=(-1, -1)):
        options.append(None)
        return tensors[0]

    query, key = torch.randn(2, 11, 4, 8), torch.randn(2, 11, kv_heads, 8)
    for function in (new, old):
        backend = Varlen(function)
        backend.attend(query, key, key, backend.prepare_mask(LAYOUTS["plain"], None))
    assert options == [kv_heads == 1, None]


def test_the_stand_in_takes_what_the_real_one_takes():
    x = torch.randn(3, 2, 8)
    starts = torch.tensor([0, 3], dtype=torch.int32)
    with pytest.raises(TypeError, match="unexpected keyword"):
        kernels.varlen_attn(x, x, x, starts, starts, 3, 3, is_causal=True)
