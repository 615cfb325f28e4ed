"""A machine without a GPU, where the checks believe that offloading saves something."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def spared_device() -> Iterator[None]:
    """Let jobs offload within the host's memory, which changes nothing but where things lie."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("setpoint.train.rules.conflicts.sees_gpu", lambda: True)
        yield
