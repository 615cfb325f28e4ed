"""The section `[checkpoint]`: when a run is saved, what stays, and whether it resumes."""

from __future__ import annotations

from typing import Literal

from setpoint.config import RUNTIME, Config, Period, field


class Checkpoint(Config, role=RUNTIME):
    """When the run is saved, how many checkpoints stay, and whether it resumes."""

    every: Period = field(default=Period("100 steps"))
    """How often a checkpoint is saved; the start, the end and Ctrl-C are saved in any case."""
    keep: int | None = field(default=2, ge=1)
    """How many of the newest checkpoints stay; null keeps all."""
    keep_best: bool = True
    """Whether the checkpoint with the lowest held-out loss stays too, under the name `best`."""
    resume: Literal["auto", "never", "must"] = "auto"
    """`auto` goes on from the newest whole checkpoint if there is one, `must` refuses to start
    without one, `never` refuses a run directory that holds one."""
