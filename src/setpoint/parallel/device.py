"""The device that a configuration asks for."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from setpoint.config import Problem, SetpointError
from setpoint.parallel.config import Parallel


def choose_device(config: Parallel) -> torch.device:
    """Find the device of the model.

    Raises:
        SetpointError: if a GPU is asked for and there is none.
    """
    wanted = config.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise SetpointError(
            "parallel.device = cuda: PyTorch sees no GPU on this machine; use --parallel.device "
            "auto or cpu"
        )
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wanted)


def device_problems(config: Parallel) -> Iterator[Problem]:
    """Find that the device is not there."""
    try:
        choose_device(config)
    except SetpointError as error:
        yield Problem("device", str(error).removeprefix("parallel.device = cuda: "))
