"""Experts on several ranks give what a loop over rows gives on one, in fp64, with all gradients."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from setpoint.config import resolve
from setpoint.model.config import TransformerConfig
from setpoint.model.huggingface.model_parallel import use_experts
from setpoint.model.moe.dispatch import build_dispatcher
from setpoint.parallel.config import Parallel
from setpoint.shapes.peers import Peers

from ...conftest import ROOT
from ...support.forks import forked


def test_two_ranks_divide_the_experts() -> None:
    forked("tests.model.moe.dispatch_ranks")


@pytest.mark.slow
def test_four_ranks_divide_the_experts() -> None:
    command = [sys.executable, "-m", "tests.model.moe.dispatch_ranks", "4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


class Packed(nn.Module):
    """Experts of two projections in one tensor each, as transformers has them."""

    def __init__(self) -> None:
        super().__init__()
        self._is_expert_parallel = False
        self.gate_up_proj = nn.Parameter(torch.zeros(2, 4, 8))
        self.down_proj = nn.Parameter(torch.zeros(2, 8, 4))


def test_a_compiled_model_of_transformers_divides_the_width_of_experts() -> None:
    dispatch = resolve(Parallel()).dispatch
    config = resolve(TransformerConfig(max_sequence_length=8))
    summed: list[tuple[str, ...]] = []
    for is_compiled in (False, True):
        model: Any = nn.ModuleDict({"experts": Packed()})
        peers = Peers("none", 0, 2)
        dispatcher = build_dispatcher(dispatch, config, None, peers, True, is_compiled)
        use_experts(model, dispatcher)
        summed.append(model.experts._summed)
    assert summed[0] and summed[0] == summed[1]
