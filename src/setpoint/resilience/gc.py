"""Manual garbage collection, synchronized across ranks."""

from __future__ import annotations

import gc

from setpoint.resilience.config import GarbageCollection

WHOLE = 2


class PacedCollection:
    """Replaces automatic garbage collection from `start` to `close`."""

    def __init__(self, section: GarbageCollection) -> None:
        self.section = section
        self._was_automatic: bool | None = None
        self._froze = False

    def start(self) -> None:
        """Run a full collection, and freeze the remaining objects.

        These are hundreds of thousands of objects from PyTorch and the model.
        """
        self._was_automatic = gc.isenabled()
        if not self.section.automatic:
            gc.disable()
        gc.collect(WHOLE)
        # If objects were frozen before, their owner wants them to stay frozen.
        self._froze = gc.get_freeze_count() == 0
        gc.freeze()

    def collect(self) -> None:
        """Collect now."""
        gc.collect(self.section.generation)

    def close(self) -> None:
        """Restore automatic collection; may be called twice."""
        if self._froze:
            gc.unfreeze()
        if self._was_automatic:
            gc.enable()
        self._was_automatic, self._froze = None, False
