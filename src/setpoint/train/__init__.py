"""The training job: its root config, build order, loop and state.

`Job` is the configuration, and `train` trains one; both are imported when they are used.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from setpoint.train.config import Job
    from setpoint.train.run import train
    from setpoint.train.session import Run

__all__ = ["Job", "Run", "train"]

_WHERE = {"Job": "config", "Run": "session", "train": "run"}


def __getattr__(name: str) -> Any:
    # `train` needs torch, which takes a second.
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"setpoint.train.{_WHERE[name]}"), name)


def prepare_threads() -> None:
    """Make waiting threads sleep instead of spinning; call before torch is imported.

    This package and `setpoint.infer` do when they are imported, and with them every command and
    every program that loads torch for a job.

    OpenMP's threads spin at barriers. With one other busy process on the machine that makes
    training on two threads 25 to 35 times slower (measured). A setting of the
    user's own is left alone, as is the environment of a process that has loaded torch already.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


prepare_threads()
