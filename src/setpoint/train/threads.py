"""Settings that the numerics libraries read when they are loaded."""

from __future__ import annotations

import os
import sys


def prepare_threads() -> None:
    """Make waiting threads sleep instead of spinning; call before torch is imported.

    The packages `setpoint.train` and `setpoint.infer` do when they are imported, and with them
    every command that loads torch.

    OpenMP's threads spin at barriers. With one other busy process on the machine that makes
    training on two threads 25 to 35 times slower (measured; see docs/decisions). A setting of the
    user's own is left alone, as is the environment of a process that has loaded torch already.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
