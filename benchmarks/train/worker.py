"""One side of `train.loops` in a process of its own: `python -m train.worker SIDE ...`."""

from __future__ import annotations

import importlib
import os
import sys

from train.turns import Turns
from train.work import make_work


def main(side: str, model: str, precision: str, steps: str, updates: str, device: str) -> None:
    """Train when told to."""
    # Frameworks print; what they print goes nowhere, and answers have a file of their own.
    answers = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    module = importlib.import_module(f"train.sides.{side}")
    turns = Turns(int(steps), int(updates), sys.stdin, answers)
    work = make_work(model, precision, int(updates), device)
    turns.built()
    turns.finish(module.run(work, turns))


if __name__ == "__main__":
    main(*sys.argv[1:])
