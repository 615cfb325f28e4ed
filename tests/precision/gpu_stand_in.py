"""A machine whose CPU stands for a GPU, so that fp16 and float8 can be looked at anywhere."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch


@contextmanager
def gpu_stand_in() -> Iterator[None]:
    """Let jobs that ask for a GPU run on the CPU; torchao, where it is needed, must be there."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("parallel.world", "parallel.process_group"):
            patch.setattr(f"setpoint.{module}.choose_device", lambda _: torch.device("cpu"))
        patch.setattr("setpoint.precision.float8.why_not", lambda *_: None)
        yield
