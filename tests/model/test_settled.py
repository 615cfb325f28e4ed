"""A tensor that is on its way from other ranks is waited for before the first layer."""

import os
import subprocess
import sys
from pathlib import Path

import torch

from setpoint.model.settled import settled

ROOT = Path(__file__).resolve().parents[2]


def test_an_ordinary_tensor_is_left_alone():
    x = torch.ones(2, requires_grad=True)
    assert settled(x) is x
    parameter = torch.nn.Parameter(torch.ones(2))
    assert settled(parameter) is parameter


def test_compiled_layers_of_a_model_with_tensor_parallelism():
    """Trap: the backward pass of the first one fails on the embedding's pending collective."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-m", "tests.model.tensor_parallel_ranks"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
