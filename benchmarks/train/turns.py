"""Takes turns with other processes: a side trains a block of updates when it is told to."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Any, TextIO

import torch

from harness import memory_line, synchronize


class Turns:
    """The end of a side that trains: one process for each side, of which one runs at a time.

    A framework's own loop cannot be stopped from outside, but from a callback it can.

    Arguments:
        steps: updates in a block.
        updates: all of them.
        requests: each line lets a block run.
        answers: gets a line for each block.
    """

    def __init__(self, steps: int, updates: int, requests: TextIO, answers: TextIO) -> None:
        self.steps, self.updates = steps, updates
        self.requests, self.answers = requests, answers
        self.done = 0
        self.base = 0
        self._wall = self._cpu = 0.0

    def built(self) -> None:
        """Measure memory from here on: what the loop adds to the model and the data."""
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
            return
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the most so far is what there is now
        self.base = memory_line("VmRSS")

    def begin(self) -> None:
        """Wait for the first turn; called right before the first update."""
        self.tell(ready=True)
        self._wait()

    def after_step(self) -> None:
        """Count an update, and let others run after the last of a block."""
        self.done += 1
        if self.done % self.steps:
            return
        synchronize(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        self.tell(wall=wall, cpu=cpu)
        if self.done < self.updates:
            self._wait()

    def finish(self, losses: list[float]) -> None:
        """Tell what was learned and taken."""
        if torch.cuda.is_available():
            peak = torch.cuda.max_memory_allocated()
        else:
            peak = memory_line("VmHWM") - self.base
        self.tell(losses=losses, peak=peak)

    def tell(self, **what: Any) -> None:
        """Answer."""
        print(json.dumps(what), file=self.answers, flush=True)

    def _wait(self) -> None:
        if not self.requests.readline():
            sys.exit(1)  # nobody listens any more
        self._wall, self._cpu = time.perf_counter(), time.process_time()
