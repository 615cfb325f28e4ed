"""A tensor that is on its way from other ranks is waited for before the first layer."""

from collections.abc import Callable

import torch

from setpoint.model.transformer import wait_for_collective


def test_an_ordinary_tensor_is_left_alone():
    x = torch.ones(2, requires_grad=True)
    assert wait_for_collective(x) is x
    parameter = torch.nn.Parameter(torch.ones(2))
    assert wait_for_collective(parameter) is parameter


def test_compiled_layers_of_a_model_with_tensor_parallelism(run_module: Callable[[str], None]):
    """Trap: the backward pass of the first one fails on the embedding's pending collective."""
    run_module("tests.model.tensor_parallel_ranks")
