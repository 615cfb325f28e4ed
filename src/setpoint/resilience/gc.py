"""Manual garbage collection, for which all ranks pause together."""

from __future__ import annotations

import gc

from setpoint.resilience.config import GarbageCollection

WHOLE = 2


class PacedCollection:
    """Collects in place of Python, from `start` to `close`."""

    def __init__(self, section: GarbageCollection) -> None:
        self.section = section
        self._was_automatic: bool | None = None
        self._froze = False

    def start(self) -> None:
        """Collect all there is, and set aside what stays, so that it is not looked at again.

        Those are the objects of PyTorch and of the model, hundreds of thousands.
        """
        self._was_automatic = gc.isenabled()
        if not self.section.automatic:
            gc.disable()
        gc.collect(WHOLE)
        # Whoever has set objects aside before wants them to stay there.
        self._froze = gc.get_freeze_count() == 0
        gc.freeze()

    def collect(self) -> None:
        """Collect now."""
        gc.collect(self.section.generation)

    def close(self) -> None:
        """Let Python collect as it did before; may be called twice."""
        if self._froze:
            gc.unfreeze()
        if self._was_automatic:
            gc.enable()
        self._was_automatic, self._froze = None, False
