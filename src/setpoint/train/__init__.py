"""The training job: its root config, build order, loop and state.

`Job` is the configuration, and `train` trains a job; both are imported on first use.
"""

from __future__ import annotations

import os
import sys

from setpoint.config.lazy import CallablePackage, exports

__getattr__, __dir__, __all__ = exports(__name__)
sys.modules[__name__].__class__ = CallablePackage


def prepare_threads() -> None:
    """Make waiting threads sleep instead of spinning; call before torch is imported.

    This package and `setpoint.infer` call it when they are imported, as does every command and
    every program that loads torch for a job.

    OpenMP's threads spin at barriers. With one other busy process on the machine this makes
    training on two threads 25 to 35 times slower (measured). A user's own setting is kept, as is
    the environment of a process that has already imported torch.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


prepare_threads()
