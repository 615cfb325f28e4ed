"""Choice of the device, and checks of the machine and its packages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec

import torch

from setpoint.config import Problem, SetpointError
from setpoint.parallel.config import Parallel, Ranks
from setpoint.parallel.pipelining import SCHEDULES, Pipelining
from setpoint.parallel.rank import require_launch

SPLITS_BACKWARD = (2, 13)
"""The torch whose backward passes in two parts take tied weights and compiled blocks."""


def choose_device(config: Ranks) -> torch.device:
    """Choose the device of the model; a rank started by a launcher gets its own GPU.

    Raises:
        SetpointError: if a GPU is asked for and there is none.
    """
    kind = config.device
    if kind == "cuda" and not torch.cuda.is_available():
        raise SetpointError(
            "parallel.device = cuda: PyTorch sees no GPU on this machine; use --parallel.device "
            "auto or cpu"
        )
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    local = os.environ.get("LOCAL_RANK")
    if kind == "cuda" and local is not None:
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
    return torch.device(kind)


def device_problems(config: Ranks) -> Iterator[Problem]:
    """Report a device that is not available."""
    try:
        choose_device(config)
    except SetpointError as error:
        yield Problem("device", str(error).removeprefix("parallel.device = cuda: "))


def backend_problems(config: Parallel) -> Iterator[Problem]:
    """Report NCCL without a GPU."""
    if choose_device(config).type != "cuda":
        reason = "the device is cpu"
        if config.device == "auto":
            reason = "PyTorch sees no GPU on this machine"
        yield Problem(
            "backend",
            f"nccl runs on GPUs, and {reason}",
            valid=("null", "gloo"),
            also=("device",),
        )


def schedule_problems(config: Pipelining) -> Iterator[Problem]:
    """Report a torch version without working split backward passes."""
    installed = version("torch")
    if tuple(int(part) for part in installed.split(".")[:2]) < SPLITS_BACKWARD:
        yield Problem(
            "schedule",
            f"needs torch {'.'.join(map(str, SPLITS_BACKWARD))} or later for backward passes in "
            f"two parts; this is {installed}",
            valid=tuple(name for name, known in SCHEDULES.items() if not known.splits_backward),
        )


def engine_problems(config: Parallel) -> Iterator[Problem]:
    """Report an engine that is not installed."""
    if config.uses_deepspeed and find_spec("deepspeed") is None:
        yield Problem(
            "engine",
            "the package deepspeed is not installed (pip install 'setpoint[deepspeed]')",
            valid=("torch",),
        )
