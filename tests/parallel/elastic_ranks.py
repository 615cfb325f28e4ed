"""Run by test_elastic.py in a process of its own: a run whose ranks die, and come back as others.

    elastic_ranks.py FOLDER SHAPES

The shapes are those of the run `elastic`: how many ranks, and in which step the last of them is
killed, as `[[4, 3], [2, null]]`. The run `alone` has one rank from the first step to the last.
"""

import json
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import torch._dynamo  # which DDP imports, and takes seconds  # noqa: F401

from ..long.torture.session import LOST, Session
from ..train.killing import die_at
from ..train.small import write_config

FLAGS = (
    "parallel.shard=-1", "batch.global_size=8", "evaluation=null", "checkpoint.every=2 steps",
    "schedule={type: constant}", "model.dropout=0",
)  # fmt: skip


def run_ranks(folder: Path, name: str, steps: int, size: int, updates: int | None) -> None:
    """Train to the end, or until the last rank is killed in an update of this session."""

    def within(stack: ExitStack, rank: int) -> None:
        if updates is not None and rank == size - 1:
            die_at(folder / "runs", "update", updates)

    flags = (f"name={name}", f"duration={steps} steps", *FLAGS)
    session = Session(folder, size, ["train", "small.toml", *(f"--{f}" for f in flags)], within)
    session.wait()
    expected = 0 if updates is None else 1
    last = 0 if updates is None else -signal.SIGKILL
    codes = dict.fromkeys(range(size), expected) | {size - 1: last}
    assert session.codes == codes, (session.codes, session.printed)
    # Those that are left name the one that is gone.
    assert size == 1 or not expected or LOST.search(session.printed), session.printed


if __name__ == "__main__":
    os.fsync = lambda descriptor: None
    place, shapes = Path(sys.argv[1]), json.loads(sys.argv[2])
    write_config(place, without=("accumulation",))
    length, begun = 2 + 2 * len(shapes), 0
    for size, dies in shapes:
        run_ranks(place, "elastic", length, size, None if dies is None else dies - begun)
        begun = 0 if dies is None else dies // 2 * 2
    run_ranks(place, "alone", length, 1, None)
