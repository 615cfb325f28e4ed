"""The device that a configuration asks for."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch

from setpoint.config import Problem, SetpointError
from setpoint.parallel.config import Ranks
from setpoint.parallel.rank import require_launch


def choose_device(config: Ranks) -> torch.device:
    """Find the device of the model, of a rank that a launcher started its own GPU.

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
    local = os.environ.get("LOCAL_RANK")
    if wanted == "cuda" and local is not None:
        require_launch(meets=False)
        count = torch.cuda.device_count()
        if not local.isdecimal() or int(local) >= count:
            raise SetpointError(
                f"environment variable LOCAL_RANK = {local!r}, and PyTorch sees {count} GPUs on "
                f"this machine.\nValid: a rank for each of them, 0 to {count - 1}"
            )
        device = torch.device("cuda", int(local))
        torch.cuda.set_device(device)
        return device
    return torch.device(wanted)


def device_problems(config: Ranks) -> Iterator[Problem]:
    """Find that the device is not there."""
    try:
        choose_device(config)
    except SetpointError as error:
        yield Problem("device", str(error).removeprefix("parallel.device = cuda: "))
