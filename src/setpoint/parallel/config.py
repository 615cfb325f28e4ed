"""The section `[parallel]`: on how many ranks a job runs, and on what device."""

from __future__ import annotations

from typing import Literal

from setpoint.config import RUNTIME, Config, field


class Parallel(Config, role=RUNTIME):
    """Where a job runs."""

    world_size: int = field(default=1, ge=1)
    """Number of ranks. The launcher's WORLD_SIZE or --world-size sets it; a plan can be checked
    for any number, training runs on one in this version."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the model; auto takes a GPU if there is one."""
