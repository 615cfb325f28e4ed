"""The loop of `setpoint train` with its callbacks, logging every 10 updates."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from harness import training_loop
from setpoint.train.loop import Callback, Loop
from setpoint.train.open import settings_of
from setpoint.train.verdict import StepResult
from train.turns import Turns
from train.work import Work


class Turn(Callback):
    """Gives the turn away after a block.

    Arguments:
        turns: with the other sides.
    """

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.losses: list[float] = []

    def start(self, loop: Loop) -> None:
        """See `Callback.start`."""
        self.turns.begin()

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """See `Callback.after_step`."""
        self.losses.append(result.loss)
        self.turns.after_step()


def run(work: Work, turns: Turns) -> list[float]:
    """Train."""
    turn = Turn(turns)
    with (
        settings_of(work.job),
        tempfile.TemporaryDirectory() as folder,
        open(os.devnull, "w") as nowhere,
        training_loop(work.job, work.components, Path(folder) / "run", nowhere, [turn]) as loop,
    ):
        loop.run()
    return turn.losses
