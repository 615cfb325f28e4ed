"""Seals rows of metrics between checkpoints."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from setpoint.train.loop import Callback, Phase

if TYPE_CHECKING:
    from setpoint.track.chain import Chain
    from setpoint.train.loop import Loop, StepResult

EVERY = 60.0
"""Seconds. A link waits for the disk twice and hashes the rows since the last one: milliseconds."""


class SealCallback(Callback):
    """Writes a link of the chain every minute; checkpoints and the end of a session do so, too."""

    phase = Phase.TIDY

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.last = time.monotonic()

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Seal what there is if it is due."""
        if time.monotonic() - self.last >= EVERY:
            self.chain.seal()
            self.last = time.monotonic()
